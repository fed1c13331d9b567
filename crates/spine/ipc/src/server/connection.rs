//! The life of one connection: handshake, calls, end.
//!
//! Reads only until one call more than may run, so a busy peer waits in its own
//! socket. Must never outlive its peer, and must never send after a malformed
//! frame anything but the one failure that says so. Next: `transport`.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{timeout, timeout_at};

use super::context::{Caller, RequestContext};
use super::{Incident, Server, answer};
use crate::frame::{Frame, LIMIT, LIMIT_BEFORE_HANDSHAKE};
use crate::handshake::{self, Hello, Welcome};
use crate::message::v1::{CANCEL, encode_failure, encode_result};
use crate::message::{ErrorCode, Event, Failure, Message, Request, RequestId};
use crate::peer::PeerIdentity;
use crate::sys::stream::{ReadHalf, Stream, WriteHalf, closed, split};
use crate::transport::{
    FrameReader, Outgoing, ReadFrameError, WriterEnd, WriterHandle, start_writer,
};

pub(super) async fn run(
    server: Arc<Server>,
    stream: Stream,
    peer: PeerIdentity,
    mut stopping: watch::Receiver<()>,
) {
    let (read, mut write) = split(stream);
    let limits = &server.limits;
    let mut reader = FrameReader::new(read, LIMIT_BEFORE_HANDSHAKE, limits.frame);
    let greeting = timeout(limits.handshake, greet(&server, &mut reader, &mut write));
    let hello = tokio::select! {
        biased;
        _ = stopping.changed() => return,
        greeted = greeting => match greeted {
            Ok(Some(hello)) => hello,
            Ok(None) | Err(_) => return server.counters.add(Incident::HandshakeRefused),
        },
    };
    reader.set_limit(LIMIT);
    let (outgoing, writer) = start_writer(write, limits.queue, Some(limits.slow_reader));
    let connection = Connection {
        caller: Arc::new(Caller { peer, hello }),
        outgoing,
        calls: JoinSet::new(),
        running: HashMap::new(),
        parked: None,
        server: Arc::clone(&server),
    };
    connection.serve(reader, writer, stopping).await;
}

/// The client's hello after it was answered, or none if it was refused.
async fn greet(
    server: &Server,
    reader: &mut FrameReader<ReadHalf>,
    write: &mut WriteHalf,
) -> Option<Hello> {
    let first = match reader.read_frame().await {
        Ok(Some(frame)) => Message::parse(&frame).map_err(|error| malformed(&error)),
        Ok(None) => return None,
        Err(error) => Err(malformed(&error)),
    };
    let accepted = first.and_then(|first| handshake::accept(first, server.api));
    let (bytes, hello) = match accepted {
        Ok(hello) => {
            let welcome = Welcome {
                name: server.name.clone(),
                version: server.version.clone(),
                api_version: hello.api_version,
                supported: server.api,
                in_flight: server.limits.in_flight.max(1),
            };
            (encode_result(handshake::REQUEST, &welcome), Some(hello))
        }
        Err(failure) => (encode_failure(Some(handshake::REQUEST), &failure), None),
    };
    // A peer that does not take the answer has no connection.
    write.write_all(&bytes.ok()?).await.ok()?;
    hello
}

struct Connection {
    server: Arc<Server>,
    caller: Arc<Caller>,
    outgoing: Outgoing,
    calls: JoinSet<RequestId>,
    running: HashMap<RequestId, AbortHandle>,
    // Read beyond the limit, so that what was sent before it, such as the
    // withdrawal of a call, is not stuck behind the limit.
    parked: Option<Request>,
}

/// Why a connection ends.
enum End {
    /// The peer closed it, or it broke.
    Closed,
    /// The server is told to stop.
    Stopping,
    /// The peer did not read in time.
    SlowReader,
    /// The process that connected has ended.
    PeerGone,
    /// The peer broke the protocol, and is told so.
    Violation(Incident, Failure),
}

/// Whether frames are read.
#[derive(Clone, Copy)]
enum Intake {
    Open,
    Paused,
}

impl Connection {
    async fn serve(
        mut self,
        mut reader: FrameReader<ReadHalf>,
        mut writer: WriterHandle,
        mut stopping: watch::Receiver<()>,
    ) {
        let end = loop {
            let intake = self.intake();
            tokio::select! {
                biased;
                _ = stopping.changed() => break End::Stopping,
                end = writer.ended() => break end.into(),
                Some(ended) = self.calls.join_next() => {
                    self.forget(ended);
                    if let Some(request) = self.parked.take()
                        && let Err(end) = self.start(request)
                    {
                        break end;
                    }
                }
                next = next_frame(&mut reader, intake) => match next {
                    Ok(Some(frame)) => if let Err(end) = self.handle(&frame) {
                        break end;
                    },
                    Ok(None) => break End::Closed,
                    Err(error) => break error.into(),
                },
            }
        };
        self.end(end, &reader, writer).await;
    }

    fn intake(&self) -> Intake {
        match self.parked {
            None => Intake::Open,
            Some(_) => Intake::Paused,
        }
    }

    fn has_room(&self) -> bool {
        let limit = self.server.limits.in_flight.max(1);
        u32::try_from(self.calls.len()).is_ok_and(|calls| calls < limit)
    }

    fn forget(&mut self, ended: Result<RequestId, JoinError>) {
        // The error is a cancelled call, which was forgotten when cancelled.
        if let Ok(id) = ended {
            self.running.remove(&id);
        }
    }

    fn handle(&mut self, frame: &Frame) -> Result<(), End> {
        let message = Message::parse(frame)
            .map_err(|error| End::Violation(Incident::Malformed, malformed(&error)))?;
        match message {
            Message::Request(request) => self.start(request),
            Message::Event(Event {
                id: Some(id),
                method,
                ..
            }) if method == CANCEL => {
                if let Some(call) = self.running.remove(&id) {
                    call.abort();
                }
                Ok(())
            }
            // Events are news; what is news to an older server is no fault.
            Message::Event(_) => Ok(()),
            Message::Response(_) => Err(violation("a client sends no responses")),
        }
    }

    /// Starts a call, or parks it while as many run as may.
    fn start(&mut self, request: Request) -> Result<(), End> {
        // The connection may have been handed to others, the identity not.
        if !self.caller.peer.is_running() {
            return Err(End::PeerGone);
        }
        if self.running.contains_key(&request.id) {
            return Err(violation("the id of a request is in use by another"));
        }
        if !self.has_room() {
            self.parked = Some(request);
            return Ok(());
        }
        let Request { id, method, params } = request;
        let outgoing = self.outgoing.clone();
        let context = RequestContext {
            caller: Arc::clone(&self.caller),
            id,
            outgoing: outgoing.clone(),
        };
        let work = self.server.methods.get(&method).cloned();
        let call = self.calls.spawn(async move {
            let bytes = match work {
                Some(work) => work(context, params).await,
                None => answer::<()>(id, Err(unknown(&method))),
            };
            // If the connection is gone, so is everybody who would care.
            let _ = outgoing.send(bytes).await;
            id
        });
        self.running.insert(id, call);
        Ok(())
    }

    async fn end(mut self, end: End, reader: &FrameReader<ReadHalf>, mut writer: WriterHandle) {
        let patience = self.server.limits.slow_reader;
        match end {
            End::Closed => {}
            End::SlowReader => self.server.counters.add(Incident::SlowReader),
            End::PeerGone => self.server.counters.add(Incident::PeerGone),
            End::Violation(incident, failure) => {
                self.server.counters.add(incident);
                self.calls.abort_all();
                self.say_farewell(&failure, writer, patience).await;
            }
            End::Stopping => {
                if self.drain(reader, &mut writer).await.is_ok() {
                    let message = format!("`{}` is shutting down", self.server.name);
                    let failure = Failure::new(ErrorCode::ShuttingDown, message);
                    self.say_farewell(&failure, writer, patience).await;
                }
            }
        }
    }

    /// Waits for the calls, within the grace, while the peer is there.
    async fn drain(
        &mut self,
        reader: &FrameReader<ReadHalf>,
        writer: &mut WriterHandle,
    ) -> Result<(), End> {
        let deadline = tokio::time::Instant::now() + self.server.limits.grace;
        while !self.calls.is_empty() {
            tokio::select! {
                biased;
                end = writer.ended() => return Err(end.into()),
                () = closed(reader.source()) => return Err(End::Closed),
                ended = timeout_at(deadline, self.calls.join_next()) => match ended {
                    Ok(Some(ended)) => self.forget(ended),
                    // What still runs ends with the connection.
                    Ok(None) | Err(_) => break,
                },
            }
        }
        Ok(())
    }

    async fn say_farewell(&self, failure: &Failure, writer: WriterHandle, patience: Duration) {
        let farewell = async {
            if let Ok(bytes) = encode_failure(None, failure) {
                // Nothing to do for a peer that is gone already.
                let _ = self.outgoing.send(bytes).await;
            }
            writer.flush(patience).await
        };
        let end = timeout(patience, farewell).await;
        if matches!(end, Err(_) | Ok(WriterEnd::SlowReader)) {
            self.server.counters.add(Incident::SlowReader);
        }
    }
}

/// The next frame; while paused only the end of the stream is noticed.
async fn next_frame(
    reader: &mut FrameReader<ReadHalf>,
    intake: Intake,
) -> Result<Option<Frame>, ReadFrameError> {
    match intake {
        Intake::Open => reader.read_frame().await,
        Intake::Paused => {
            closed(reader.source()).await;
            Ok(None)
        }
    }
}

impl From<WriterEnd> for End {
    fn from(end: WriterEnd) -> Self {
        match end {
            WriterEnd::SlowReader => Self::SlowReader,
            WriterEnd::Flushed | WriterEnd::Broken => Self::Closed,
        }
    }
}

impl From<ReadFrameError> for End {
    fn from(error: ReadFrameError) -> Self {
        match &error {
            ReadFrameError::Stream(_) => Self::Closed,
            ReadFrameError::TooSlow => Self::Violation(Incident::SlowWriter, malformed(&error)),
            ReadFrameError::Frame(_) => Self::Violation(Incident::Malformed, malformed(&error)),
        }
    }
}

fn violation(why: &str) -> End {
    End::Violation(Incident::Malformed, Failure::new(ErrorCode::Malformed, why))
}

/// The failure that tells a peer what is wrong with its bytes, down to why.
fn malformed(error: &dyn Error) -> Failure {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        message.push_str(": ");
        message.push_str(&cause.to_string());
        source = cause.source();
    }
    Failure::new(ErrorCode::Malformed, message)
}

fn unknown(method: &str) -> Failure {
    Failure::new(
        ErrorCode::UnknownMethod,
        format!("there is no method `{method}`; a newer server may have it"),
    )
}
