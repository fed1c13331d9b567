//! The calling side: one connection, many calls at a time.
//!
//! Calls are answered in any order; dropping a call withdraws it. Must never
//! retry by itself: only the caller knows whether a call may run twice, and
//! the errors say whether trying again can help. Next: `client/errors.rs`.

mod calls;
mod errors;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub use errors::{CallError, ConnectError};

use crate::frame::{LIMIT, LIMIT_BEFORE_HANDSHAKE};
use crate::handshake::{self, Hello, Welcome};
use crate::message::v1::{CANCEL, encode_event, encode_request};
use crate::message::{ErrorCode, Event, Failure, Message, RequestId, Response};
use crate::sys::stream::{ReadHalf, Stream, WriteHalf, connect, split};
use crate::transport::{FrameReader, Outgoing, WriterHandle, start_writer};
use calls::CallTable;

/// Frames that may wait to be sent; further calls wait for room.
const QUEUE: usize = 64;

/// How long one frame of the server may take, from its first byte.
const FRAME_PATIENCE: Duration = Duration::from_secs(30);

/// How long connecting and the handshake may take together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a call may take unless [`Client::with_timeout`] says otherwise.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to a server. Clones share it; the last one closes it.
#[derive(Debug, Clone)]
pub struct Client {
    connection: Arc<Connection>,
    timeout: Duration,
}

#[derive(Debug)]
struct Connection {
    welcome: Welcome,
    next_id: AtomicU64,
    calls: Arc<CallTable>,
    // As many as the server works on at once: the rest waits here, where it
    // can be given up without a trace.
    slots: Semaphore,
    outgoing: Outgoing,
    reader: JoinHandle<()>,
    _writer: WriterHandle,
}

/// The events that belong to no call that wants them for itself.
#[derive(Debug)]
pub struct Events(mpsc::Receiver<Event>);

impl Client {
    /// Connects and shakes hands.
    ///
    /// # Errors
    /// Nobody serves the path, or the server refuses; the error says whether
    /// trying again can help and what else to do.
    pub async fn connect(path: impl AsRef<Path>, hello: Hello) -> Result<Self, ConnectError> {
        let path = path.as_ref();
        timeout(CONNECT_TIMEOUT, Self::establish(path, hello))
            .await
            .unwrap_or_else(|_| {
                Err(ConnectError::TimedOut {
                    path: path.to_owned(),
                    after: CONNECT_TIMEOUT,
                })
            })
    }

    /// The same connection, with another time limit for calls.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self {
            connection: Arc::clone(&self.connection),
            timeout,
        }
    }

    /// What the server said about itself.
    #[must_use]
    pub fn server(&self) -> &Welcome {
        &self.connection.welcome
    }

    /// Calls a method and waits for its result.
    ///
    /// # Errors
    /// The server answered with a failure, the time ran out, or the connection
    /// ended; [`CallError::is_retryable`] tells whether to try again.
    pub async fn call<P, R>(&self, method: &str, params: &P) -> Result<R, CallError>
    where
        P: Serialize + ?Sized,
        R: DeserializeOwned,
    {
        self.run(method, params, None).await
    }

    /// Calls a method whose events go to `events` until it has answered.
    ///
    /// Take them out while the call runs: when the channel is full the whole
    /// connection waits, which is how a server learns to slow down, and a
    /// server may close a connection that waits for long.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn call_with_events<P, R>(
        &self,
        method: &str,
        params: &P,
        events: mpsc::Sender<Event>,
    ) -> Result<R, CallError>
    where
        P: Serialize + ?Sized,
        R: DeserializeOwned,
    {
        self.run(method, params, Some(events)).await
    }

    /// Receives all events that no running call receives.
    ///
    /// At most `capacity` wait unread, then the whole connection waits. A
    /// second subscription ends the first; without any, events are dropped.
    #[must_use]
    pub fn subscribe(&self, capacity: usize) -> Events {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        self.connection.calls.subscribe(sender);
        Events(receiver)
    }

    async fn run<P, R>(
        &self,
        method: &str,
        params: &P,
        events: Option<mpsc::Sender<Event>>,
    ) -> Result<R, CallError>
    where
        P: Serialize + ?Sized,
        R: DeserializeOwned,
    {
        let id = RequestId(self.connection.next_id.fetch_add(1, Ordering::Relaxed));
        let bytes = encode_request(id, method, params).map_err(|source| CallError::Encode {
            method: method.into(),
            source,
        })?;
        let exchange = self.connection.exchange(id, method, bytes, events);
        let result = timeout(self.timeout, exchange)
            .await
            .map_err(|_| CallError::TimedOut {
                method: method.into(),
                after: self.timeout,
            })??;
        serde_json::from_str(result.get()).map_err(|source| CallError::Decode {
            method: method.into(),
            source,
        })
    }

    async fn establish(path: &Path, hello: Hello) -> Result<Self, ConnectError> {
        let stream = connect_patiently(path).await?;
        let (read, mut write) = split(stream);
        let mut reader = FrameReader::new(read, LIMIT_BEFORE_HANDSHAKE, FRAME_PATIENCE);
        let welcome = greet(path, &hello, &mut reader, &mut write).await?;
        reader.set_limit(LIMIT);
        let calls = Arc::new(CallTable::default());
        let (outgoing, writer) = start_writer(write, QUEUE, None);
        let reader = tokio::spawn(receive(reader, Arc::clone(&calls)));
        let slots = usize::try_from(welcome.in_flight).unwrap_or(usize::MAX);
        let slots = slots.clamp(1, Semaphore::MAX_PERMITS);
        Ok(Self {
            connection: Arc::new(Connection {
                welcome,
                slots: Semaphore::new(slots),
                next_id: AtomicU64::new(handshake::REQUEST.0 + 1),
                calls,
                outgoing,
                reader,
                _writer: writer,
            }),
            timeout: CALL_TIMEOUT,
        })
    }
}

impl Events {
    /// The next event, or none when the connection or subscription ended.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }
}

impl Connection {
    async fn exchange(
        &self,
        id: RequestId,
        method: &str,
        bytes: Vec<u8>,
        events: Option<mpsc::Sender<Event>>,
    ) -> Result<Box<serde_json::value::RawValue>, CallError> {
        let gone = || CallError::Disconnected {
            method: method.into(),
            reason: self.calls.reason(),
        };
        // Released last, after the withdrawal is on its way.
        let _slot = self.slots.acquire().await.map_err(|_| gone())?;
        let answer = self.calls.register(id, events).ok_or_else(gone)?;
        let mut withdrawal = Withdrawal {
            connection: self,
            id,
            is_sent: false,
        };
        self.outgoing.send(bytes).await.map_err(|_| gone())?;
        withdrawal.is_sent = true;
        let outcome = answer.await.map_err(|_| gone())?;
        withdrawal.is_sent = false;
        outcome.map_err(|failure| CallError::Failed {
            method: method.into(),
            failure,
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Forgets a call when it ends, and tells the server if it ends early.
struct Withdrawal<'a> {
    connection: &'a Connection,
    id: RequestId,
    is_sent: bool,
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        self.connection.calls.forget(self.id);
        if self.is_sent
            && let Ok(bytes) = encode_event(Some(self.id), CANCEL, &())
        {
            self.connection.outgoing.offer(bytes);
        }
    }
}

/// A full backlog is a busy server, not a missing one.
async fn connect_patiently(path: &Path) -> Result<Stream, ConnectError> {
    let mut pause = Duration::from_millis(1);
    loop {
        match connect(path).await {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            Err(source) => {
                return Err(ConnectError::Unreachable {
                    path: path.to_owned(),
                    source,
                });
            }
        }
    }
}

async fn greet(
    path: &Path,
    hello: &Hello,
    reader: &mut FrameReader<ReadHalf>,
    write: &mut WriteHalf,
) -> Result<Welcome, ConnectError> {
    let closed = || ConnectError::Closed {
        path: path.to_owned(),
    };
    let bytes = encode_request(handshake::REQUEST, handshake::METHOD, hello);
    // A server that refuses may have closed already: its reason is still there.
    let _ = write.write_all(&bytes.map_err(|_| closed())?).await;
    let frame = reader
        .read_frame()
        .await
        .ok()
        .flatten()
        .ok_or_else(closed)?;
    let Ok(Message::Response(Response { outcome, .. })) = Message::parse(&frame) else {
        return Err(closed());
    };
    let welcome = match outcome {
        Ok(result) => serde_json::from_str::<Welcome>(result.get()).map_err(|_| closed())?,
        Err(failure) => return Err(refused(path, hello, failure)),
    };
    if welcome.api_version != hello.api_version {
        return Err(ConnectError::Version {
            path: path.to_owned(),
            ours: hello.api_version,
            supported: welcome.supported,
        });
    }
    Ok(welcome)
}

fn refused(path: &Path, hello: &Hello, failure: Failure) -> ConnectError {
    let path = path.to_owned();
    match failure.supported {
        Some(supported) if failure.code == ErrorCode::VersionUnsupported => ConnectError::Version {
            path,
            ours: hello.api_version,
            supported,
        },
        _ => ConnectError::Refused { path, failure },
    }
}

/// Hands out what arrives until the connection ends.
async fn receive(mut reader: FrameReader<ReadHalf>, calls: Arc<CallTable>) {
    let reason = loop {
        let Ok(Some(frame)) = reader.read_frame().await else {
            break None;
        };
        match Message::parse(&frame) {
            Ok(Message::Response(Response {
                id: Some(id),
                outcome,
            })) => calls.answer(id, outcome),
            Ok(Message::Response(Response { id: None, outcome })) => break outcome.err(),
            Ok(Message::Event(event)) => {
                if let Some(events) = calls.events_for(event.id) {
                    // Nobody listens any more: the event is dropped.
                    let _ = events.send(event).await;
                }
            }
            Ok(Message::Request(_)) | Err(_) => break None,
        }
    };
    calls.close(reason);
}
