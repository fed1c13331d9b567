//! The HTTP client: one request, one connection, one stream of bytes.
//!
//! Reaches only what its [`Dialer`] gives it, follows no redirect, and bounds
//! everything by size and time. Dropping an exchange closes its connection.
//! Never retries: that is `attempt` and `driver`. Next: `client/dial.rs` for
//! the way out, `client/tls.rs` for whom it trusts.

mod dial;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_contract::BoxFuture;
use fluffy_contract::model::{FaultKind, ModelFault, Retry};
use fluffy_secret::SecretString;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zeroize::Zeroizing;

pub use dial::{DialError, Dialed, Dialer, Direct, Egress, Form, ProxyAddress, Transport};
pub use tls::{LoadRootsError, Roots};

use crate::adapter::{HttpRequest, ProviderSettings, fault};
use crate::address::Scheme;
use crate::retry_after::retry_after;

/// The most bytes of an answer that are read.
pub const MAX_ANSWER: usize = 64 << 20;

/// The most bytes of a refusal that are read.
const MAX_REFUSAL: usize = 64 << 10;

/// The most bytes of an answer that does not stream.
const MAX_WHOLE: usize = 16 << 20;

/// How long the parts of an exchange may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Connecting, with TLS.
    pub connect: Duration,
    /// From the request to the first byte of the answer.
    pub first_byte: Duration,
    /// Between two pieces of the answer.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(15),
            // Models may think for minutes before they say anything.
            first_byte: Duration::from_secs(300),
            idle: Duration::from_secs(300),
        }
    }
}

/// Something that sends requests; tests bring their own.
pub trait Exchange: Send + Sync {
    /// Sends a request and waits for the head of the answer.
    fn send<'a>(
        &'a self,
        settings: &'a ProviderSettings,
        request: &'a HttpRequest,
        key: Option<&'a SecretString>,
    ) -> BoxFuture<'a, Result<Box<dyn Body>, Refused>>;
}

/// The bytes of an answer as they come. Dropping it ends the exchange.
pub trait Body: Send {
    /// The next bytes; nothing at the end.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Vec<u8>>, ModelFault>>;
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// What happened.
    pub fault: ModelFault,
    /// How long the provider wants us to wait.
    pub retry_after: Option<Duration>,
}

/// The real [`Exchange`].
pub struct Client {
    dialer: Box<dyn Dialer>,
    tls: tls::Connector,
    timeouts: Timeouts,
    clock: Arc<dyn fluffy_base::Clock>,
}

impl Client {
    /// A client that goes out by `dialer` and trusts `roots`.
    #[must_use]
    pub fn new(dialer: Box<dyn Dialer>, roots: Roots, timeouts: Timeouts) -> Self {
        Self {
            dialer,
            tls: tls::Connector::new(roots),
            timeouts,
            clock: Arc::new(fluffy_base::SystemClock),
        }
    }

    async fn connect(&self, settings: &ProviderSettings) -> Result<Dialed, Refused> {
        let url = &settings.base_url;
        let connecting = async {
            let dialed = self
                .dialer
                .dial(url)
                .await
                .map_err(|error| error.into_refused(url))?;
            match url.scheme() {
                Scheme::Http => Ok(dialed),
                Scheme::Https => {
                    let stream = self.tls.connect(url.host(), dialed.transport).await;
                    let transport = stream.map_err(|error| {
                        let message = format!("no TLS with `{}`: {error}", url.host());
                        // A wrong certificate stays wrong.
                        refused(FaultKind::Network, message, Retry::Never)
                    })?;
                    Ok(Dialed {
                        transport,
                        ..dialed
                    })
                }
            }
        };
        timeout(self.timeouts.connect, connecting)
            .await
            .unwrap_or_else(|_| {
                let after = self.timeouts.connect.as_secs();
                let message = format!("no connection with `{}` within {after} s", url.host());
                Err(refused(FaultKind::TimedOut, message, Retry::Later))
            })
    }

    async fn exchange(
        &self,
        settings: &ProviderSettings,
        request: &HttpRequest,
        key: Option<&SecretString>,
    ) -> Result<Box<dyn Body>, Refused> {
        let dialed = self.connect(settings).await?;
        let request = build(settings, request, key, dialed.form)?;
        let sending = async {
            let (mut sender, connection) =
                http1::handshake::<_, Full<Bytes>>(TokioIo::new(dialed.transport)).await?;
            let connection = Connection(tokio::spawn(async move {
                // Whatever is wrong with it is seen by the exchange as well.
                let _ = connection.await;
            }));
            let response = sender.send_request(request).await?;
            Ok::<_, hyper::Error>((response, connection))
        };
        let (response, connection) = match timeout(self.timeouts.first_byte, sending).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(broken(settings.base_url.host(), &error).into()),
            Err(_) => return Err(silent(settings.base_url.host(), self.timeouts.first_byte).into()),
        };
        let (head, incoming) = response.into_parts();
        let mut body = HttpBody {
            host: settings.base_url.host().to_owned(),
            incoming,
            first: None,
            idle: self.timeouts.idle,
            left: MAX_ANSWER,
            _connection: connection,
        };
        if head.status != StatusCode::OK {
            let said = read_all(&mut body, MAX_REFUSAL).await;
            return Err(refusal(&head, &said, self.clock.now()));
        }
        if !is_stream(&head.headers) {
            // A server that does not stream: its answer is one event.
            let whole = read_all(&mut body, MAX_WHOLE).await;
            let line: Vec<u8> = whole
                .into_iter()
                .filter(|byte| !b"\r\n".contains(byte))
                .collect();
            body.first = Some([b"data: ".as_slice(), &line, b"\n\n"].concat());
        }
        Ok(Box::new(body))
    }
}

impl Exchange for Client {
    fn send<'a>(
        &'a self,
        settings: &'a ProviderSettings,
        request: &'a HttpRequest,
        key: Option<&'a SecretString>,
    ) -> BoxFuture<'a, Result<Box<dyn Body>, Refused>> {
        Box::pin(self.exchange(settings, request, key))
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("timeouts", &self.timeouts)
            .finish_non_exhaustive()
    }
}

/// Ends the connection's task with the exchange.
#[derive(Debug)]
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct HttpBody {
    host: String,
    incoming: Incoming,
    first: Option<Vec<u8>>,
    idle: Duration,
    left: usize,
    _connection: Connection,
}

impl HttpBody {
    async fn read(&mut self) -> Result<Option<Vec<u8>>, ModelFault> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        loop {
            let frame = match timeout(self.idle, self.incoming.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => return Err(broken(&self.host, &error)),
                Ok(None) => return Ok(None),
                Err(_) => return Err(silent(&self.host, self.idle)),
            };
            // Trailers say nothing that we need.
            let Ok(bytes) = frame.into_data() else {
                continue;
            };
            let Some(left) = self.left.checked_sub(bytes.len()) else {
                return Err(ModelFault {
                    kind: FaultKind::Malformed,
                    message: format!("`{}` sent more than 64 MiB", self.host),
                    retryable: Retry::Never,
                });
            };
            self.left = left;
            return Ok(Some(bytes.to_vec()));
        }
    }
}

impl Body for HttpBody {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Vec<u8>>, ModelFault>> {
        Box::pin(self.read())
    }
}

/// As much of a body as is wanted, whatever becomes of the rest.
async fn read_all(body: &mut HttpBody, limit: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while let Ok(Some(bytes)) = body.read().await {
        let room = limit.saturating_sub(all.len());
        all.extend(bytes.into_iter().take(room));
        if all.len() >= limit {
            break;
        }
    }
    all
}

fn build(
    settings: &ProviderSettings,
    request: &HttpRequest,
    key: Option<&SecretString>,
    form: Form,
) -> Result<Request<Full<Bytes>>, Refused> {
    let wrong = |what: &str| refused(FaultKind::InvalidRequest, what.to_owned(), Retry::Never);
    let authority = settings.base_url.authority();
    let uri = match form {
        Form::Origin => request.path.clone(),
        Form::Absolute => format!("http://{authority}{}", request.path),
    };
    let body = Full::new(Bytes::copy_from_slice(&request.body));
    let mut built = Request::builder().method(Method::POST).uri(uri);
    built = built.header(header::HOST, authority);
    for (name, value) in &request.headers {
        built = built.header(*name, *value);
    }
    let mut built = built
        .body(body)
        .map_err(|_| wrong("the request has no form in HTTP"))?;
    if let Some(key) = key {
        let (name, prefix) = settings.wire.key_header();
        let value = Zeroizing::new(format!("{prefix}{}", key.expose()));
        let mut value = HeaderValue::from_str(&value)
            .map_err(|_| wrong("the key has characters that no header can carry"))?;
        value.set_sensitive(true);
        built
            .headers_mut()
            .insert(HeaderName::from_static(name), value);
    }
    Ok(built)
}

fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    // What does not say what it is may well be a stream.
    kind.is_none_or(|kind| !kind.trim_start().starts_with("application/json"))
}

fn refusal(head: &hyper::http::response::Parts, said: &[u8], now: Timestamp) -> Refused {
    let status = head.status.as_u16();
    if let Some(reason) = head.headers.get("proxy-status") {
        let reason = reason.to_str().unwrap_or("no reason");
        let message = format!(
            "the way out is closed ({reason}): {}",
            String::from_utf8_lossy(said)
        );
        // As with a tunnel: what broke may work the next time, a no stays a no.
        let again = match head.status.is_server_error() {
            true => Retry::Later,
            false => Retry::Never,
        };
        return refused(FaultKind::Network, message, again);
    }
    if head.status.is_redirection() {
        let message = format!("status {status}: redirects are not followed; correct the base URL");
        return refused(FaultKind::InvalidRequest, message, Retry::Never);
    }
    let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    Refused {
        fault: fault::from_status(status, said),
        retry_after: retry_after(text, now),
    }
}

fn refused(kind: FaultKind, message: String, retryable: Retry) -> Refused {
    ModelFault {
        kind,
        message,
        retryable,
    }
    .into()
}

impl From<ModelFault> for Refused {
    fn from(fault: ModelFault) -> Self {
        Self {
            fault,
            retry_after: None,
        }
    }
}

fn broken(host: &str, error: &hyper::Error) -> ModelFault {
    let mut reason = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        reason = format!("{reason}: {source}");
    }
    ModelFault {
        kind: FaultKind::Network,
        message: format!("the connection with `{host}` broke: {reason}"),
        retryable: Retry::Later,
    }
}

fn silent(host: &str, after: Duration) -> ModelFault {
    ModelFault {
        kind: FaultKind::TimedOut,
        message: format!("`{host}` said nothing for {} s", after.as_secs()),
        retryable: Retry::Later,
    }
}
