//! The serving side: methods by name, offered to every connection.
//!
//! One task accepts, one task per connection reads, one per call works. Must
//! never let one peer, slow, hostile or many, cost another peer its answers.
//! Next: `server/connection.rs` for the life of a connection.

mod connection;
mod context;
mod incident;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use context::{EmitError, EventSender, RequestContext};
pub use incident::{Counters, Incident};

use crate::frame::EncodeFrameError;
use crate::handshake::ApiRange;
use crate::listener::{AcceptError, Listener};
use crate::message::v1::{encode_failure, encode_result};
use crate::message::{ErrorCode, Failure, RequestId};
use crate::peer::IdentifyPeerError;
use crate::sys;

/// How long to wait before accepting again when the system is out of something.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The methods that peers may call, and the limits they are held to.
#[derive(Clone)]
pub struct Server {
    name: String,
    version: String,
    api: ApiRange,
    methods: HashMap<String, Handler>,
    limits: ServerLimits,
    counters: Arc<Counters>,
}

/// What a server allows its peers.
#[derive(Debug, Clone)]
pub struct ServerLimits {
    /// Connections at the same time, per listener.
    pub connections: usize,
    /// Calls at work per connection; with one more its socket is not read.
    pub in_flight: u32,
    /// Frames that may wait to be sent to one peer.
    pub queue: usize,
    /// How long the handshake may take, from accept.
    pub handshake: Duration,
    /// How long one frame may take, from its first byte.
    pub frame: Duration,
    /// How long a peer may take to read one frame of ours.
    pub slow_reader: Duration,
    /// How long calls may go on after the shutdown began.
    pub grace: Duration,
}

/// Why a server ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener broke in a way that waiting does not heal.
    #[error("cannot accept connections any more")]
    Accept(#[source] io::Error),
}

type Handler = Arc<dyn Fn(RequestContext, Box<RawValue>) -> Answer + Send + Sync>;

/// The bytes of the response, whatever happened.
type Answer = Pin<Box<dyn Future<Output = Vec<u8>> + Send>>;

impl Server {
    /// A server without methods, with the default limits.
    #[must_use]
    pub fn new(name: impl Into<String>, api: ApiRange) -> Self {
        Self {
            name: name.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            api,
            methods: HashMap::new(),
            limits: ServerLimits::default(),
            counters: Arc::default(),
        }
    }

    /// Offers a method; a second one of the same name replaces the first.
    ///
    /// Parameters and result are whatever serde can read and write. A call
    /// whose client is gone is dropped at its next await.
    #[must_use]
    pub fn method<P, R, F, W>(mut self, name: impl Into<String>, handler: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        R: Serialize + Send + 'static,
        F: Fn(RequestContext, P) -> W + Send + Sync + 'static,
        W: Future<Output = Result<R, Failure>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let counters = Arc::clone(&self.counters);
        let erased: Handler = Arc::new(move |context, params| {
            let handler = Arc::clone(&handler);
            let counters = Arc::clone(&counters);
            Box::pin(async move {
                let id = context.request_id();
                let work = async move {
                    let params = read_params(&params)?;
                    handler(context, params).await
                };
                let outcome = catch_panic(work).await.unwrap_or_else(|Panicked| {
                    counters.add(Incident::Panic);
                    Err(Failure::internal())
                });
                answer(id, outcome)
            })
        });
        self.methods.insert(name.into(), erased);
        self
    }

    /// Sets the version that clients are told, for people.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: ServerLimits) -> Self {
        self.limits = limits;
        self
    }

    /// What went wrong with peers so far, also while serving.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Serves until `shutdown` is ready, then lets calls end within the grace.
    ///
    /// Clone the server to serve several listeners, such as one per sandbox.
    ///
    /// # Errors
    /// The listener broke; connections were ended as in a shutdown.
    pub async fn serve(
        self,
        mut listener: Listener,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ServeError> {
        let server = Arc::new(self);
        let (stop, stopping) = watch::channel(());
        let mut connections = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        let outcome = loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break Ok(()),
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) if connections.len() >= server.limits.connections => {
                        server.refuse(&stream, Incident::TooManyConnections, &server.full());
                    }
                    Ok((stream, peer)) => {
                        let server = Arc::clone(&server);
                        connections.spawn(connection::run(server, stream, peer, stopping.clone()));
                    }
                    Err(AcceptError::Identity(stream, error)) => {
                        server.refuse(&stream, Incident::NoIdentity, &unidentified(&error));
                    }
                    Err(AcceptError::Socket(error)) if sys::stream::is_passing(&error) => {
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                    Err(AcceptError::Socket(error)) => break Err(ServeError::Accept(error)),
                },
            }
        };
        // First the name goes, so that nobody connects to a server that ends.
        drop(listener);
        drop(stop);
        while connections.join_next().await.is_some() {}
        outcome
    }

    fn refuse(&self, stream: &sys::stream::Stream, incident: Incident, failure: &Failure) {
        self.counters.add(incident);
        if let Ok(bytes) = encode_failure(None, failure) {
            sys::stream::write_now(stream, &bytes);
        }
    }

    fn full(&self) -> Failure {
        let Self { name, limits, .. } = self;
        let message = format!(
            "`{name}` has {} connections, which is its limit; close one or try again later",
            limits.connections
        );
        Failure::new(ErrorCode::TooManyConnections, message)
    }
}

fn unidentified(error: &IdentifyPeerError) -> Failure {
    Failure::new(ErrorCode::NoIdentity, error.to_string())
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("name", &self.name)
            .field("api", &self.api)
            .field("methods", &self.methods.keys())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 256,
            in_flight: 64,
            queue: 64,
            handshake: Duration::from_secs(5),
            frame: Duration::from_secs(30),
            slow_reader: Duration::from_secs(10),
            grace: Duration::from_secs(10),
        }
    }
}

fn read_params<P: DeserializeOwned>(params: &RawValue) -> Result<P, Failure> {
    serde_json::from_str(params.get())
        .map_err(|error| Failure::new(ErrorCode::InvalidParams, format!("parameters: {error}")))
}

fn answer<R: Serialize>(id: RequestId, outcome: Result<R, Failure>) -> Vec<u8> {
    let encoded = match outcome {
        Ok(result) => encode_result(id, &result).or_else(|error| {
            let failure = match error {
                EncodeFrameError::TooLarge { limit } => Failure::new(
                    ErrorCode::TooLarge,
                    format!("the result is larger than {limit} bytes; ask for a part of it"),
                ),
                EncodeFrameError::Json(_) => Failure::internal(),
            };
            encode_failure(Some(id), &failure)
        }),
        Err(failure) => encode_failure(Some(id), &failure),
    };
    encoded
        .or_else(|_| encode_failure(Some(id), &Failure::internal()))
        // The last one is a short constant, which always fits.
        .unwrap_or_default()
}

struct Panicked;

/// Turns a panic of the future into an error; it is not polled afterwards.
async fn catch_panic<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        // Safe to assert: what a panic left half done is dropped, not used.
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(Panicked)),
        }
    })
    .await
}
