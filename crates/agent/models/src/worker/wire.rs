//! The messages between kernel and worker: the frames of `ipc`, version 1.
//!
//! To the worker: one setup, then turns and cancellations. From it: that it is
//! ready, events by turn, and the end of each turn. No key is in any of them.

use std::net::SocketAddr;
use std::path::PathBuf;

use fluffy_contract::model::{FaultKind, ModelEvent, ModelFault, Retry, Turn};
use fluffy_ipc::frame::{Decoder, EncodeFrameError, LIMIT, encode as encode_frame};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::ServeError;
use crate::adapter::ProviderSettings;

/// The version of these messages.
pub(super) const VERSION: u32 = 1;

/// What the kernel says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum ToWorker {
    /// First and once: whom to ask, and by which way.
    Setup(Setup),
    /// A turn to be answered.
    Turn {
        /// Counts up.
        id: u64,
        /// The turn.
        turn: Box<Turn>,
    },
    /// A turn that nobody waits for any more.
    Cancel {
        /// Which.
        id: u64,
    },
}

/// What the worker says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum FromWorker {
    /// The setup was taken.
    Ready {
        /// The version it speaks.
        version: u32,
    },
    /// An event of a turn.
    Event {
        /// Which turn.
        id: u64,
        /// The event.
        event: ModelEvent,
    },
    /// A turn has no more events.
    End {
        /// Which.
        id: u64,
    },
}

/// Whom a worker asks, and by which way it goes out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The version of the messages; see [`Setup::new`].
    pub version: u32,
    /// The models, in the order they are tried.
    pub links: Vec<SetupLink>,
    /// The way out.
    pub proxy: ProxySetup,
    /// Whom to trust, as PEM; none means the machine's own roots.
    #[serde(default)]
    pub roots: Option<String>,
    /// How long things may take; none means the usual.
    #[serde(default)]
    pub timeouts: Option<SetupTimeouts>,
}

/// One model of a setup; its key comes apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetupLink {
    /// Its provider.
    pub settings: ProviderSettings,
    /// Its name there.
    pub model: String,
}

/// The way out of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ProxySetup {
    /// The egress proxy on the sandbox's loopback.
    Tcp {
        /// Where it listens.
        address: SocketAddr,
    },
    /// The egress proxy on a socket.
    Unix {
        /// Where it listens.
        path: PathBuf,
    },
    /// No proxy: loopback alone can be reached.
    Loopback,
}

/// How long things may take, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetupTimeouts {
    /// Connecting, with TLS.
    pub connect_seconds: u64,
    /// Until the first byte of an answer.
    pub first_byte_seconds: u64,
    /// Between two pieces of an answer.
    pub idle_seconds: u64,
}

impl Setup {
    /// A setup of this version.
    #[must_use]
    pub const fn new(links: Vec<SetupLink>, proxy: ProxySetup) -> Self {
        Self {
            version: VERSION,
            links,
            proxy,
            roots: None,
            timeouts: None,
        }
    }
}

/// What is said to a turn that is one too many.
pub(super) fn busy() -> ModelEvent {
    ModelEvent::Error(ModelFault {
        kind: FaultKind::Overloaded,
        message: "the worker has too many turns at a time".to_owned(),
        retryable: Retry::Later,
    })
}

/// A message as a frame.
pub(super) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, EncodeFrameError> {
    encode_frame(message, LIMIT)
}

/// Reads messages out of frames.
pub(super) struct Reader<R> {
    input: R,
    decoder: Decoder,
    buffer: Vec<u8>,
    start: usize,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(super) const fn new(input: R) -> Self {
        Self {
            input,
            decoder: Decoder::new(LIMIT),
            buffer: Vec::new(),
            start: 0,
        }
    }

    /// The next message; nothing when the other side has closed.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ServeError> {
        loop {
            let mut rest = self.buffer.get(self.start..).unwrap_or_default();
            let wrong = |problem: String| ServeError::Message { problem };
            let frame = self
                .decoder
                .feed(&mut rest)
                .map_err(|error| wrong(error.to_string()))?;
            self.start = self.buffer.len() - rest.len();
            if let Some(frame) = frame {
                let message = serde_json::from_str(frame.as_str());
                return message.map(Some).map_err(|error| wrong(error.to_string()));
            }
            self.buffer.resize(64 << 10, 0);
            let read = self.input.read(&mut self.buffer).await?;
            self.buffer.truncate(read);
            self.start = 0;
            if read == 0 {
                let ended = self
                    .decoder
                    .finish()
                    .map_err(|error| wrong(error.to_string()));
                return ended.map(|()| None);
            }
        }
    }
}
