//! The server itself: a thread of its own, one request per connection.
//!
//! Its runtime is apart from the test's, so that a test may stop its own
//! clock. Ends with the handle. Next: `http` for the bytes, `wire` for what
//! they mean.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

use crate::conversation::Conversation;
use crate::http::{self, Connection};
use crate::reply::{Delivery, Fault, Reply};
use crate::wire::Format;

/// A running server. Dropping it ends it.
pub struct ModelServer {
    address: SocketAddr,
    certificate: Option<String>,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// How a server is started.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The key that requests must carry; none takes any.
    pub key: Option<String>,
    /// Whether it speaks TLS.
    pub tls: bool,
    /// The port; 0 is any free one.
    pub port: u16,
    /// Whether bodies are forgotten once answered, for very long sessions.
    pub forgets: bool,
}

/// A request as it came.
#[derive(Debug, Clone, PartialEq)]
pub struct Received {
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers, names in small letters.
    pub headers: Vec<(String, String)>,
    /// The body; `null` if it was no JSON.
    pub body: Value,
}

type Brain = Box<dyn FnMut(&Conversation) -> Reply + Send>;

struct Shared {
    options: Options,
    brain: Mutex<Brain>,
    received: Mutex<Vec<Received>>,
    refused: Mutex<Vec<String>>,
}

impl ModelServer {
    /// Says these replies, in order; after the last it refuses.
    ///
    /// # Errors
    /// No port is free.
    pub fn scripted(replies: Vec<Reply>) -> Result<Self> {
        Self::start(Options::default(), script(replies))
    }

    /// Answers by a function of the conversation so far.
    ///
    /// # Errors
    /// No port is free.
    pub fn thinking(brain: impl FnMut(&Conversation) -> Reply + Send + 'static) -> Result<Self> {
        Self::start(Options::default(), brain)
    }

    /// Starts with options.
    ///
    /// # Errors
    /// The port is taken, or no certificate could be made.
    pub fn start(
        options: Options,
        brain: impl FnMut(&Conversation) -> Reply + Send + 'static,
    ) -> Result<Self> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", options.port))
            .context("cannot listen on loopback")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (acceptor, certificate) = match options.tls {
            true => crate::tls::acceptor().map(|(acceptor, pem)| (Some(acceptor), Some(pem)))?,
            false => (None, None),
        };
        let shared = Arc::new(Shared {
            options,
            brain: Mutex::new(Box::new(brain)),
            received: Mutex::default(),
            refused: Mutex::default(),
        });
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let serving = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            runtime.block_on(serve(listener, acceptor, serving, stopped));
        });
        Ok(Self {
            address,
            certificate,
            shared,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The base URL for a format.
    #[must_use]
    pub fn base_url(&self, format: Format) -> String {
        let scheme = match self.certificate {
            Some(_) => "https",
            None => "http",
        };
        format!("{scheme}://{}{}", self.address, format.base_path())
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The certificate to trust, as PEM, if it speaks TLS.
    #[must_use]
    pub fn certificate(&self) -> Option<&str> {
        self.certificate.as_deref()
    }

    /// All requests so far.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        lock(&self.shared.received).clone()
    }

    /// Why requests were refused as the vendor would have refused them.
    #[must_use]
    pub fn refused(&self) -> Vec<String> {
        lock(&self.shared.refused).clone()
    }
}

/// A function that says replies in order.
pub(crate) fn script(replies: Vec<Reply>) -> impl FnMut(&Conversation) -> Reply + Send + 'static {
    let mut replies = VecDeque::from(replies);
    move |_| {
        replies.pop_front().unwrap_or_else(|| {
            let headers = vec![];
            Reply::failing(Fault::Status {
                status: 400,
                headers,
            })
        })
    }
}

impl Received {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(each, _)| each == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for ModelServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelServer")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(
    listener: std::net::TcpListener,
    acceptor: Option<TlsAcceptor>,
    shared: Arc<Shared>,
    mut stopped: oneshot::Receiver<()>,
) {
    let Ok(listener) = TcpListener::from_std(listener) else {
        return;
    };
    loop {
        let stream = tokio::select! {
            _ = &mut stopped => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => continue,
            },
        };
        let _ = stream.set_nodelay(true);
        let (acceptor, shared) = (acceptor.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            // A peer that goes away in the middle is what tests are about.
            let _ = match acceptor {
                Some(acceptor) => match acceptor.accept(stream).await {
                    Ok(mut stream) => handle(&mut stream, &shared).await,
                    Err(error) => Err(error.into()),
                },
                None => handle(&mut { stream }, &shared).await,
            };
        });
    }
}

async fn handle(stream: &mut dyn Connection, shared: &Shared) -> Result<()> {
    let Some(request) = http::read(stream).await? else {
        return Ok(());
    };
    let number = {
        let mut received = lock(&shared.received);
        received.push(match shared.options.forgets {
            false => request.clone(),
            true => Received {
                method: request.method.clone(),
                path: request.path.clone(),
                headers: request.headers.clone(),
                body: Value::Null,
            },
        });
        received.len() - 1
    };
    let Some(format) = Format::of_path(&request.path) else {
        let body = Format::Chat.error_body(404, "no such path");
        return http::answer(stream, 404, &[], &body).await;
    };
    if let Some(problem) = missing_key(&shared.options, format, &request) {
        let body = format.error_body(401, problem);
        return http::answer(stream, 401, &[], &body).await;
    }
    let mut conversation = match format.read(&request.path, &request.body) {
        Ok(conversation) => conversation,
        Err(problem) => {
            lock(&shared.refused).push(problem.clone());
            let body = format.error_body(400, &problem);
            return http::answer(stream, 400, &[], &body).await;
        }
    };
    conversation.number = number;
    let reply = (lock(&shared.brain))(&conversation);
    say(stream, format, &conversation.model, &reply).await
}

fn missing_key(options: &Options, format: Format, request: &Received) -> Option<&'static str> {
    let key = options.key.as_deref()?;
    let (header, prefix) = format.key_header();
    let given = request
        .header(header)
        .and_then(|value| value.strip_prefix(prefix));
    (given != Some(key)).then_some("Incorrect API key provided")
}

async fn say(
    stream: &mut dyn Connection,
    format: Format,
    model: &str,
    reply: &Reply,
) -> Result<()> {
    let events = format.events(model, reply);
    let (kept, last) = match &reply.fault {
        None => (events.len(), Last::End),
        Some(Fault::Status { status, headers }) => {
            let body = format.error_body(*status, "the test wanted this error");
            return http::answer(stream, *status, headers, &body).await;
        }
        Some(Fault::DieAtOnce) => return Ok(()),
        Some(Fault::HangAtOnce) => return std::future::pending().await,
        Some(Fault::ErrorAfter { events }) => (*events, Last::Event(format.error_event())),
        Some(Fault::WrongJsonAfter { events }) => {
            let broken = "data: {\"this is\": no JSON\n\n".to_owned();
            (*events, Last::Event(broken))
        }
        Some(Fault::DieAfter { events }) => (*events, Last::Die),
        Some(Fault::HangAfter { events }) => (*events, Last::Hang),
        Some(Fault::CutAfter { events }) => (*events, Last::End),
    };
    http::begin_stream(stream).await?;
    let mut parts: Vec<String> = Vec::new();
    for event in events.into_iter().take(kept) {
        if reply.keep_alives {
            parts.push(format.keep_alive().to_owned());
        }
        parts.push(event);
    }
    if let Last::Event(event) = &last {
        parts.push(event.clone());
    }
    deliver(stream, &parts, reply.delivery).await?;
    match last {
        Last::End | Last::Event(_) => http::end_stream(stream).await,
        Last::Die => Ok(()),
        Last::Hang => std::future::pending().await,
    }
}

enum Last {
    End,
    Event(String),
    Die,
    Hang,
}

async fn deliver(stream: &mut dyn Connection, parts: &[String], delivery: Delivery) -> Result<()> {
    let size = match delivery {
        Delivery::Events => {
            for part in parts {
                http::chunk(stream, part.as_bytes()).await?;
            }
            return Ok(());
        }
        Delivery::Slow { millis } => {
            for part in parts {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                http::chunk(stream, part.as_bytes()).await?;
            }
            return Ok(());
        }
        Delivery::Whole => usize::MAX,
        Delivery::Bytes => 1,
        Delivery::Pieces(size) => size.max(1),
    };
    for piece in parts.concat().as_bytes().chunks(size) {
        http::chunk(stream, piece).await?;
    }
    Ok(())
}
