//! A client of the HTTP interface: typed calls over TLS or the local socket.
//!
//! Says on every read what the last write was, so a session sees its own
//! writes on every replica. Gives every write a key, so that sending it again
//! after a lost answer is safe. Never sends a token in the clear. Next:
//! `client/transport.rs`; `client/watch.rs` for streams of changes, and
//! `client/exec.rs` for commands in instances.

mod exec;
mod transport;
mod watch;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fluffy_base::id::RequestId;
use fluffy_secret::SecretString;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Request, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::operation::{Auth, Operation};
use crate::problem::Problem;
use crate::types::List;
use crate::version::CLIENT_VERSION;

pub use exec::{ALIVE_EVERY, ExecEvent, ExecReceiver, ExecSender};
use transport::Transport;
pub use watch::{Change, ChangeKind, Watch};

/// The largest answer that is read.
const MAX_ANSWER: usize = 64 << 20;

/// How often a call is sent at most.
const ATTEMPTS: u32 = 4;

/// How long a call waits between attempts, if the server does not say.
const PAUSE: Duration = Duration::from_millis(300);

/// The longest pause that a server can ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A socket on this machine; the server knows the caller by it.
    Socket(PathBuf),
    /// An address such as `https://fluffy.example:7443`.
    Https {
        /// The address.
        url: String,
        /// Whom to trust, as PEM; the machine's own roots if absent.
        ca: Option<String>,
    },
}

/// A client, to be cloned freely.
#[derive(Clone)]
pub struct Client {
    transport: Arc<Transport>,
    token: Option<Arc<SecretString>>,
    seen: Arc<Mutex<Option<Seen>>>,
}

/// The last event that a session knows of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// The epoch of the ledger.
    pub epoch: u64,
    /// The event.
    pub seq: u64,
}

/// What is asked, before it is sent.
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    operation: Operation,
    path: &'a [&'a str],
    query: Vec<(&'a str, String)>,
    body: Option<Value>,
    if_match: Option<u64>,
    key: Option<String>,
    wait: Option<u8>,
}

/// A good answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub value: Value,
    /// The last event of a write, or the last that a read knows.
    pub seen: Option<Seen>,
    /// The version of the object.
    pub etag: Option<u64>,
    /// The id of the call.
    pub request_id: String,
    /// Whether this is the answer of an earlier call with the same key.
    pub replayed: bool,
}

/// Why there is no good answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The server refused.
    #[error("{}", .0.detail)]
    Refused(Box<Problem>),
    /// The server cannot be reached.
    #[error("no connection to {server}")]
    Unreachable {
        /// Which.
        server: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The connection broke, or the answer took too long.
    #[error("no answer from {server}")]
    Broken {
        /// Which.
        server: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server answered what no server of ours does.
    #[error("{server} answered with status {status} and no JSON that fits")]
    Malformed {
        /// Which.
        server: String,
        /// The status.
        status: u16,
    },
    /// The call itself cannot be made.
    #[error("`{operation}` cannot be called like this: {why}")]
    Unsendable {
        /// Which operation.
        operation: &'static str,
        /// Why.
        why: &'static str,
    },
    /// The address or the certificates are of no use.
    #[error("`{target}` cannot be used: {why}")]
    Target {
        /// Which.
        target: String,
        /// Why.
        why: &'static str,
    },
}

impl Client {
    /// A client of a server that answers.
    ///
    /// # Errors
    /// The address is of no use, or nobody is there.
    pub async fn connect(target: Target) -> Result<Self, CallError> {
        let transport = Transport::new(target)?;
        transport.warm().await?;
        Ok(Self {
            transport: Arc::new(transport),
            token: None,
            seen: Arc::default(),
        })
    }

    /// The same client with a token.
    #[must_use]
    pub fn with_token(mut self, token: SecretString) -> Self {
        self.token = Some(Arc::new(token));
        self
    }

    /// Goes on from an earlier session: reads wait for this event.
    pub fn remember(&self, seen: Seen) {
        let mut last = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        *last = (*last).max(Some(seen));
    }

    /// Forgets an event that no ledger there has: what was seen was seen of
    /// another one, such as that of a data folder which was made anew.
    fn unlearn(&self, problem: &Problem) {
        if let Some(head) = head_of(problem) {
            let mut last = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            *last = (*last).min(Some(head));
        }
    }

    /// The last event that this session knows of.
    #[must_use]
    pub fn seen(&self) -> Option<Seen> {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls an operation, again if that is safe and may help.
    ///
    /// # Errors
    /// See [`CallError`]; after `Broken` a write may have happened.
    pub async fn call(&self, ask: Ask<'_>) -> Result<Answer, CallError> {
        let spec = ask.operation.spec();
        // What a login answers is never stored, so it is never sent twice.
        let may_repeat = spec.auth == Auth::Caller;
        let key = ask
            .key
            .clone()
            .or_else(|| (spec.is_write() && may_repeat).then(|| RequestId::generate().to_string()));
        let mut attempt = 1;
        loop {
            let request = self.request(&ask, key.as_deref(), "application/json")?;
            let result = self.once(&ask, request).await;
            let pause = match &result {
                Err(CallError::Unreachable { .. }) => Some(PAUSE * attempt),
                Err(CallError::Broken { .. }) if may_repeat => Some(PAUSE * attempt),
                // What no ledger there has was forgotten, and is not waited for again.
                Err(CallError::Refused(problem)) if head_of(problem).is_some() => {
                    Some(Duration::ZERO)
                }
                Err(CallError::Refused(problem)) if is_passing(problem) => Some(
                    problem
                        .retry_after
                        .map_or(PAUSE * attempt, Duration::from_secs),
                ),
                _ => None,
            };
            match pause {
                Some(pause) if attempt < ATTEMPTS => {
                    tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
                    attempt += 1;
                }
                _ => return result,
            }
        }
    }

    /// Reads an object.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn get<T: DeserializeOwned>(
        &self,
        operation: Operation,
        path: &[&str],
    ) -> Result<T, CallError> {
        let answer = self.call(Ask::new(operation, path)).await?;
        self.read(answer)
    }

    /// Sends a body and reads the object that comes back.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn send<T: DeserializeOwned>(
        &self,
        operation: Operation,
        path: &[&str],
        body: &impl Serialize,
    ) -> Result<T, CallError> {
        let answer = self.call(Ask::new(operation, path).body(body)).await?;
        self.read(answer)
    }

    /// Reads a whole list, page by page.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn list<T: DeserializeOwned>(&self, ask: Ask<'_>) -> Result<Vec<T>, CallError> {
        let mut all = Vec::new();
        let mut cursor = None;
        loop {
            let mut page = ask.clone();
            page.query.extend(cursor.map(|cursor| ("cursor", cursor)));
            let answer = self.call(page).await?;
            let page: List<T> = self.read(answer)?;
            all.extend(page.items);
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// Streams a list: what is there, then every change.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn watch(&self, ask: Ask<'_>, after: Option<u64>) -> Result<Watch, CallError> {
        let after = after.map(|after| after.to_string());
        self.resume(ask, after.as_deref()).await
    }

    /// Streams on from where a stream was, by the id of its last change.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn resume(&self, ask: Ask<'_>, after: Option<&str>) -> Result<Watch, CallError> {
        let mut request = self.request(&ask, None, "text/event-stream")?;
        // What can't be sent was no id of a stream.
        let after = after.and_then(|after| HeaderValue::from_str(after).ok());
        if let Some(after) = after {
            request.headers_mut().insert("last-event-id", after);
        }
        let response = self.transport.send(request).await?;
        if response.status().is_success() {
            return Ok(Watch::new(response.into_body(), self.transport.server()));
        }
        match self.answer(response).await {
            Ok(answer) => Err(self.malformed(answer.status)),
            Err(error) => Err(error),
        }
    }

    /// Reads a value out of an answer.
    ///
    /// # Errors
    /// It is not what the operation answers with.
    pub fn read<T: DeserializeOwned>(&self, answer: Answer) -> Result<T, CallError> {
        let status = answer.status;
        serde_json::from_value(answer.value).map_err(|_| self.malformed(status))
    }

    async fn once(
        &self,
        ask: &Ask<'_>,
        request: Request<Full<Bytes>>,
    ) -> Result<Answer, CallError> {
        let answered = async {
            let response = self.transport.send(request).await?;
            self.answer(response).await
        };
        let answer = tokio::time::timeout(PATIENCE, answered)
            .await
            .unwrap_or_else(|elapsed| {
                Err(CallError::Broken {
                    server: self.transport.server().to_owned(),
                    source: elapsed.into(),
                })
            })?;
        if let (true, Some(seen)) = (ask.operation.spec().is_write(), answer.seen) {
            self.remember(seen);
        }
        Ok(answer)
    }

    fn request(
        &self,
        ask: &Ask<'_>,
        key: Option<&str>,
        accept: &'static str,
    ) -> Result<Request<Full<Bytes>>, CallError> {
        let spec = ask.operation.spec();
        let unsendable = |why| CallError::Unsendable {
            operation: spec.id,
            why,
        };
        let values: Vec<String> = ask.path.iter().map(|value| encode(value)).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let mut target = ask
            .operation
            .path_with(&values)
            .ok_or_else(|| unsendable("its path names something else"))?;
        for (index, (name, value)) in ask.query.iter().enumerate() {
            target.push(if index == 0 { '?' } else { '&' });
            target.push_str(&format!("{name}={}", encode(value)));
        }
        let body = match &ask.body {
            Some(body) => body.to_string().into(),
            None => Bytes::new(),
        };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = spec
            .method
            .as_str()
            .parse()
            .map_err(|_| unsendable("its method is none"))?;
        *request.uri_mut() = target
            .parse()
            .map_err(|_| unsendable("its path is too long"))?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        let version = HeaderValue::from_static(env!("CARGO_PKG_VERSION"));
        headers.insert(CLIENT_VERSION, version);
        if ask.body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(token) = &self.token {
            let value = HeaderValue::try_from(format!("Bearer {}", token.expose()));
            let mut value = value.map_err(|_| unsendable("the token has a wrong form"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        if let Some(key) = key {
            let value = HeaderValue::try_from(key);
            let value = value.map_err(|_| unsendable("the key has a wrong form"))?;
            headers.insert("idempotency-key", value);
        }
        self.add_versions(ask, headers);
        Ok(request)
    }

    fn add_versions(&self, ask: &Ask<'_>, headers: &mut HeaderMap) {
        if let Some(version) = ask.if_match
            && let Ok(value) = HeaderValue::try_from(format!("\"{version}\""))
        {
            headers.insert("if-match", value);
        }
        if let Some(wait) = ask.wait
            && let Ok(value) = HeaderValue::try_from(format!("wait={wait}"))
        {
            headers.insert("prefer", value);
        }
        if let (false, Some(seen)) = (ask.operation.spec().is_write(), self.seen()) {
            headers.insert("fluffy-min-seq", seen.seq.into());
            headers.insert("fluffy-epoch", seen.epoch.into());
        }
    }

    async fn answer(&self, response: Response<Incoming>) -> Result<Answer, CallError> {
        let status = response.status().as_u16();
        let (head, body) = response.into_parts();
        let bytes = Limited::new(body, MAX_ANSWER)
            .collect()
            .await
            .map_err(|source| CallError::Broken {
                server: self.transport.server().to_owned(),
                source,
            })?
            .to_bytes();
        if !(200..300).contains(&status) {
            return Err(match serde_json::from_slice::<Box<Problem>>(&bytes) {
                Ok(problem) => {
                    self.unlearn(&problem);
                    CallError::Refused(problem)
                }
                Err(_) => self.malformed(status),
            });
        }
        let value = serde_json::from_slice(&bytes).map_err(|_| self.malformed(status))?;
        let headers = &head.headers;
        let seq = number(headers, "fluffy-seq").or_else(|| number(headers, "fluffy-applied-seq"));
        let epoch = number(headers, "fluffy-epoch");
        Ok(Answer {
            status,
            value,
            seen: epoch.zip(seq).map(|(epoch, seq)| Seen { epoch, seq }),
            etag: number(headers, "etag"),
            request_id: text(headers, "fluffy-request-id")
                .unwrap_or_default()
                .into(),
            replayed: text(headers, "idempotency-replayed") == Some("true"),
        })
    }

    fn malformed(&self, status: u16) -> CallError {
        CallError::Malformed {
            server: self.transport.server().to_owned(),
            status,
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("server", &self.transport.server())
            .finish_non_exhaustive()
    }
}

impl<'a> Ask<'a> {
    /// Asks for an operation on what its path names.
    #[must_use]
    pub fn new(operation: Operation, path: &'a [&'a str]) -> Self {
        Self {
            operation,
            path,
            query: Vec::new(),
            body: None,
            if_match: None,
            key: None,
            wait: None,
        }
    }

    /// With something behind the question mark.
    #[must_use]
    pub fn query(mut self, name: &'a str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    /// With a body.
    #[must_use]
    pub fn body(mut self, body: &impl Serialize) -> Self {
        // Our own types are always JSON; what is not is refused by the server.
        self.body = Some(serde_json::to_value(body).unwrap_or_default());
        self
    }

    /// Only if the object has this version.
    #[must_use]
    pub fn if_match(mut self, version: u64) -> Self {
        self.if_match = Some(version);
        self
    }

    /// With a key of the caller's own, so that another process can repeat it.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Waits this many seconds for the view, 10 at most.
    #[must_use]
    pub fn wait(mut self, seconds: u8) -> Self {
        self.wait = Some(seconds.min(10));
        self
    }
}

/// Where the ledger ends, of a refusal of what is beyond that.
fn head_of(problem: &Problem) -> Option<Seen> {
    let number = |name: &str| problem.details.get(name)?.as_u64();
    let (epoch, seq) = number("head_epoch").zip(number("head_seq"))?;
    Some(Seen { epoch, seq })
}

/// Whether the same call may be answered otherwise in a moment.
fn is_passing(problem: &Problem) -> bool {
    problem.status == 503 || problem.code == "idempotency_in_progress"
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name)?.trim_matches('"').parse().ok()
}

/// A value as it stands in a path or behind the question mark.
fn encode(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests;
