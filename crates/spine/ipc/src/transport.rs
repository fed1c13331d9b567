//! Frames over a stream: a reader with a deadline, a writer with a budget.
//!
//! Shared by client and server. The reader must never wait for ever inside a
//! frame, the writer must never hold more than its budget of unsent bytes.
//! Next: `frame` for the bytes, `server` and `client` for who uses this.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::frame::{Decoder, Frame, FrameError, LIMIT};

const CHUNK: usize = 16 << 10;

/// Unsent bytes per connection: the largest frame, its header and some more.
const BUDGET: usize = LIMIT + (1 << 20);

/// Reads frames; each must end within `patience` of its first byte.
#[derive(Debug)]
pub(crate) struct FrameReader<R> {
    source: R,
    decoder: Decoder,
    chunk: Box<[u8]>,
    start: usize,
    end: usize,
    patience: Duration,
    deadline: Option<Instant>,
}

/// Why there is no next frame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadFrameError {
    #[error("the stream cannot be read")]
    Stream(#[source] io::Error),
    #[error("the peer sent something that is not a frame")]
    Frame(#[source] FrameError),
    #[error("the peer did not finish a frame in time")]
    TooSlow,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(source: R, limit: usize, patience: Duration) -> Self {
        Self {
            source,
            decoder: Decoder::new(limit),
            chunk: vec![0; CHUNK].into_boxed_slice(),
            start: 0,
            end: 0,
            patience,
            deadline: None,
        }
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.decoder.set_limit(limit);
    }

    pub(crate) fn source(&self) -> &R {
        &self.source
    }

    /// The next frame, or none at the end of the stream. Cancel-safe.
    pub(crate) async fn read_frame(&mut self) -> Result<Option<Frame>, ReadFrameError> {
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(Some(frame));
            }
            let read = self.source.read(&mut self.chunk);
            let read = match self.deadline {
                None => read.await,
                Some(deadline) => timeout_at(deadline, read)
                    .await
                    .map_err(|_| ReadFrameError::TooSlow)?,
            };
            let count = read.map_err(ReadFrameError::Stream)?;
            if count == 0 {
                self.decoder.finish().map_err(ReadFrameError::Frame)?;
                return Ok(None);
            }
            (self.start, self.end) = (0, count);
        }
    }

    fn take_frame(&mut self) -> Result<Option<Frame>, ReadFrameError> {
        let mut input = self.chunk.get(self.start..self.end).unwrap_or_default();
        let frame = self
            .decoder
            .feed(&mut input)
            .map_err(ReadFrameError::Frame)?;
        self.start = self.end - input.len();
        if frame.is_some() || !self.decoder.is_inside_frame() {
            self.deadline = None;
        } else if self.deadline.is_none() {
            self.deadline = Some(Instant::now() + self.patience);
        }
        Ok(frame)
    }
}

/// The queue of frames to send; clones share one queue and one budget.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    queue: mpsc::Sender<Queued>,
    budget: Arc<Semaphore>,
}

#[derive(Debug)]
struct Queued {
    bytes: Vec<u8>,
    // Returned to the budget when the bytes are written or dropped.
    _share: OwnedSemaphorePermit,
}

/// The connection is closed; nothing more can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection is closed")]
pub struct Disconnected;

/// How the writing side of a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriterEnd {
    /// Everything queued was written and the stream was shut down.
    Flushed,
    /// The peer did not take a frame in time.
    SlowReader,
    /// The stream broke.
    Broken,
}

/// Owns the task that writes; dropping it ends the task at once.
#[derive(Debug)]
pub(crate) struct WriterHandle {
    task: JoinHandle<WriterEnd>,
    close: Option<oneshot::Sender<()>>,
}

/// Starts the writing side of a connection.
///
/// With `patience`, a frame that the peer does not take within it ends the
/// connection; without, a peer may take as long as it likes.
pub(crate) fn start_writer<W: AsyncWrite + Unpin + Send + 'static>(
    sink: W,
    capacity: usize,
    patience: Option<Duration>,
) -> (Outgoing, WriterHandle) {
    let (queue, frames) = mpsc::channel(capacity.max(1));
    let (close, closing) = oneshot::channel();
    let budget = Arc::new(Semaphore::new(BUDGET));
    let guard = CloseOnDrop(Arc::clone(&budget));
    let task = tokio::spawn(async move {
        let _guard = guard;
        write_frames(sink, frames, closing, patience).await
    });
    let handle = WriterHandle {
        task,
        close: Some(close),
    };
    (Outgoing { queue, budget }, handle)
}

/// Wakes those who wait for the budget, however the writer ends.
struct CloseOnDrop(Arc<Semaphore>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Outgoing {
    /// Waits until nothing more can be sent.
    pub(crate) async fn closed(&self) {
        self.queue.closed().await;
    }

    /// Queues a frame, waiting for room. Dropping the future queues nothing.
    pub(crate) async fn send(&self, bytes: Vec<u8>) -> Result<(), Disconnected> {
        let share = Arc::clone(&self.budget)
            .acquire_many_owned(share_of(&bytes))
            .await
            .map_err(|_| Disconnected)?;
        let queued = Queued {
            bytes,
            _share: share,
        };
        self.queue.send(queued).await.map_err(|_| Disconnected)
    }

    /// Queues a frame if there is room now; else the frame is dropped.
    pub(crate) fn offer(&self, bytes: Vec<u8>) {
        let share = Arc::clone(&self.budget).try_acquire_many_owned(share_of(&bytes));
        if let Ok(share) = share {
            // A full queue drops the frame, as promised.
            let _ = self.queue.try_send(Queued {
                bytes,
                _share: share,
            });
        }
    }
}

fn share_of(bytes: &[u8]) -> u32 {
    // Never more than all of it, or the frame would wait for ever.
    u32::try_from(bytes.len().min(BUDGET)).unwrap_or(u32::MAX)
}

impl WriterHandle {
    /// Waits until the writer ended by itself. Cancel-safe.
    pub(crate) async fn ended(&mut self) -> WriterEnd {
        (&mut self.task).await.unwrap_or(WriterEnd::Broken)
    }

    /// Writes what is queued, within `grace`, and shuts the stream down.
    pub(crate) async fn flush(mut self, grace: Duration) -> WriterEnd {
        drop(self.close.take());
        timeout(grace, self.ended())
            .await
            .unwrap_or(WriterEnd::SlowReader)
    }
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn write_frames<W: AsyncWrite + Unpin>(
    mut sink: W,
    mut frames: mpsc::Receiver<Queued>,
    mut closing: oneshot::Receiver<()>,
    patience: Option<Duration>,
) -> WriterEnd {
    let mut is_open = true;
    loop {
        let next = tokio::select! {
            biased;
            next = frames.recv() => next,
            _ = &mut closing, if is_open => {
                is_open = false;
                frames.close();
                continue;
            }
        };
        let Some(queued) = next else {
            // The peer may be gone already; there is nobody left to tell.
            let _ = sink.shutdown().await;
            return WriterEnd::Flushed;
        };
        let write = async {
            sink.write_all(&queued.bytes).await?;
            sink.flush().await
        };
        let written = match patience {
            None => write.await,
            Some(patience) => match timeout(patience, write).await {
                Ok(written) => written,
                Err(_) => return WriterEnd::SlowReader,
            },
        };
        if written.is_err() {
            return WriterEnd::Broken;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn one_byte_a_second_is_too_slow_and_the_control_is_not() {
        for (gap, finishes) in [(1000, false), (100, true)] {
            let (near, mut far) = duplex(64);
            let mut reader = FrameReader::new(near, LIMIT, PATIENCE);
            let sender = tokio::spawn(async move {
                for byte in crate::frame::encode("twenty bytes of it", LIMIT).unwrap() {
                    if far.write_all(&[byte]).await.is_err() {
                        return;
                    }
                    tokio::time::advance(Duration::from_millis(gap)).await;
                }
            });
            let outcome = reader.read_frame().await;
            match outcome {
                Ok(Some(_)) => assert!(finishes, "gap {gap}"),
                Err(ReadFrameError::TooSlow) => assert!(!finishes, "gap {gap}"),
                other => panic!("{other:?}"),
            }
            drop(reader);
            sender.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn between_frames_a_peer_may_be_silent_for_long() {
        let (near, mut far) = duplex(64);
        let mut reader = FrameReader::new(near, LIMIT, PATIENCE);
        let sender = tokio::spawn(async move {
            for _ in 0..2 {
                tokio::time::sleep(PATIENCE * 100).await;
                far.write_all(&crate::frame::encode("x", LIMIT).unwrap())
                    .await
                    .unwrap();
            }
        });
        assert!(reader.read_frame().await.unwrap().is_some());
        assert!(reader.read_frame().await.unwrap().is_some());
        assert!(reader.read_frame().await.unwrap().is_none());
        sender.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_survives_cancellation() {
        let (near, mut far) = duplex(64);
        let mut reader = FrameReader::new(near, LIMIT, PATIENCE);
        far.write_all(&[0, 0]).await.unwrap();
        // Seven tries of a third each: cancelling must not buy time.
        let mut tries = 0;
        let slow = loop {
            tries += 1;
            if let Ok(outcome) = timeout(PATIENCE / 3, reader.read_frame()).await {
                break outcome;
            }
            assert!(tries < 7, "the deadline moved");
        };
        assert!(matches!(slow, Err(ReadFrameError::TooSlow)));
    }

    #[tokio::test]
    async fn the_writer_holds_no_more_than_its_budget() {
        let (near, _far) = duplex(1);
        let (outgoing, _writer) = start_writer(near, 64, None);
        let frame = vec![0; LIMIT];
        outgoing.send(frame.clone()).await.unwrap();
        let second = outgoing.clone();
        let mut waiting = Box::pin(second.send(frame));
        let polled = tokio::select! {
            biased;
            sent = &mut waiting => Some(sent),
            () = tokio::task::yield_now() => None,
        };
        assert_eq!(polled, None, "the second frame must wait for the first");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_ends_the_writer_and_wakes_the_senders() {
        let (near, _far) = duplex(1);
        let (outgoing, mut writer) = start_writer(near, 1, Some(PATIENCE));
        let senders: Vec<_> = (0..8)
            .map(|_| {
                let outgoing = outgoing.clone();
                tokio::spawn(async move { outgoing.send(vec![0; LIMIT]).await })
            })
            .collect();
        assert_eq!(writer.ended().await, WriterEnd::SlowReader);
        let mut refused = 0;
        for sender in senders {
            refused += usize::from(sender.await.unwrap() == Err(Disconnected));
        }
        assert!(refused >= 6, "{refused}");
        assert_eq!(outgoing.send(vec![0]).await, Err(Disconnected));
    }
}
