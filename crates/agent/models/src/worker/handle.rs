//! The kernel's side of a worker: turns in, events out, drop to cancel.
//!
//! Each turn takes a permit for `net.connect` to a host of the worker's; the
//! proxy still decides about each connection. Never holds a key longer than it
//! takes to write it to the worker's input.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fluffy_contract::BoxFuture;
use fluffy_contract::model::{
    FaultKind, ModelEvent, ModelFault, ModelProvider, ModelStream, Retry, StartTurnError, Turn,
};
use fluffy_policy::Permit;
use fluffy_secret::SecretString;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use zeroize::Zeroizing;

use super::ServeError;
use super::wire::{self, FromWorker, Reader, Setup, ToWorker, VERSION};

/// Events of a turn that may wait to be taken; then the worker waits.
const QUEUE: usize = 64;

/// Why a worker is of no use.
#[derive(Debug, thiserror::Error)]
pub enum StartWorkerError {
    /// It ended or said nonsense before it was ready.
    #[error("the model worker did not start")]
    NotReady(#[source] Option<ServeError>),
    /// It could not be told what to do.
    #[error("the model worker cannot be told what to do")]
    Send(#[source] std::io::Error),
    /// It is of another version.
    #[error("the model worker speaks version {version}, not {VERSION}")]
    Version {
        /// Its version.
        version: u32,
    },
}

/// A running worker. Dropping it closes its input, which ends it.
#[derive(Debug)]
pub struct WorkerHandle {
    provider: String,
    targets: Vec<String>,
    next: AtomicU64,
    out: mpsc::UnboundedSender<Vec<u8>>,
    turns: Turns,
    tasks: [JoinHandle<()>; 2],
}

/// Who hears of which turn; nothing once the worker says nothing more.
type Turns = Arc<Mutex<Option<BTreeMap<u64, mpsc::Sender<ModelEvent>>>>>;

impl WorkerHandle {
    /// Tells a worker what to do, keys first, and waits until it is ready.
    ///
    /// # Errors
    /// The worker ended, or is of another version.
    pub async fn start<R, W>(
        mut input: W,
        output: R,
        setup: Setup,
        keys: Vec<Option<SecretString>>,
    ) -> Result<Self, StartWorkerError>
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let keys = key_block(&keys)?;
        input
            .write_all(&keys)
            .await
            .map_err(StartWorkerError::Send)?;
        drop(keys);
        let provider = setup
            .links
            .first()
            .map(|link| link.settings.provider.clone());
        let targets = setup
            .links
            .iter()
            .map(|link| link.settings.base_url.authority())
            .collect();
        let frame = wire::encode(&ToWorker::Setup(setup));
        let frame = frame.map_err(|error| StartWorkerError::Send(std::io::Error::other(error)))?;
        input
            .write_all(&frame)
            .await
            .map_err(StartWorkerError::Send)?;
        input.flush().await.map_err(StartWorkerError::Send)?;
        let mut frames = Reader::new(output);
        match frames.next().await {
            Ok(Some(FromWorker::Ready { version: VERSION })) => {}
            Ok(Some(FromWorker::Ready { version })) => {
                return Err(StartWorkerError::Version { version });
            }
            Ok(Some(_) | None) => return Err(StartWorkerError::NotReady(None)),
            Err(error) => return Err(StartWorkerError::NotReady(Some(error))),
        }
        let turns: Turns = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let (out, frames_out) = mpsc::unbounded_channel();
        let tasks = [
            tokio::spawn(write(input, frames_out)),
            tokio::spawn(receive(frames, Arc::clone(&turns))),
        ];
        Ok(Self {
            provider: provider.unwrap_or_default(),
            targets,
            next: AtomicU64::new(1),
            out,
            turns,
            tasks,
        })
    }

    /// Whether it can answer no more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.out.is_closed() || self.tasks.iter().any(JoinHandle::is_finished)
    }

    fn begin(&self, turn: Turn) -> Result<WorkerStream, StartTurnError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let message = ToWorker::Turn {
            id,
            turn: Box::new(turn),
        };
        let frame = wire::encode(&message).map_err(|source| StartTurnError::Turn {
            provider: self.provider.clone(),
            source: Box::new(source),
        })?;
        let (sender, events) = mpsc::channel(QUEUE);
        // Whoever came after the end would wait for ever.
        let is_over = match lock(&self.turns).as_mut() {
            Some(turns) => {
                turns.insert(id, sender);
                false
            }
            None => true,
        };
        let stream = WorkerStream {
            id,
            events,
            out: self.out.clone(),
            turns: Arc::clone(&self.turns),
            has_ended: false,
        };
        let is_gone = self.out.send(frame).is_err();
        match is_gone || is_over {
            true => Err(StartTurnError::Unreachable {
                provider: self.provider.clone(),
                source: "the model worker has ended".into(),
            }),
            false => Ok(stream),
        }
    }
}

impl ModelProvider for WorkerHandle {
    fn name(&self) -> &str {
        &self.provider
    }

    fn start(
        &self,
        permit: Permit,
        turn: Turn,
    ) -> BoxFuture<'_, Result<Box<dyn ModelStream>, StartTurnError>> {
        let is_target = |resource: &str| self.targets.iter().any(|target| target == resource);
        let fits = permit.action() == "net.connect" && permit.resource().is_some_and(is_target);
        let started = match fits {
            true => self.begin(turn),
            false => Err(StartTurnError::WrongPermit {
                provider: self.provider.clone(),
                permitted: permit.capability().to_string(),
            }),
        };
        let started = started.map(|stream| Box::new(stream) as Box<dyn ModelStream>);
        Box::pin(std::future::ready(started))
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// A turn of a worker. Dropping it cancels the turn.
#[derive(Debug)]
struct WorkerStream {
    id: u64,
    events: mpsc::Receiver<ModelEvent>,
    out: mpsc::UnboundedSender<Vec<u8>>,
    turns: Turns,
    has_ended: bool,
}

impl WorkerStream {
    async fn take(&mut self) -> Option<ModelEvent> {
        if self.has_ended {
            return None;
        }
        let event = self.events.recv().await.unwrap_or_else(|| {
            ModelEvent::Error(ModelFault {
                kind: FaultKind::Network,
                message: "the model worker ended in the middle of an answer".to_owned(),
                retryable: Retry::Later,
            })
        });
        self.has_ended = matches!(event, ModelEvent::Done { .. } | ModelEvent::Error(_));
        Some(event)
    }
}

impl ModelStream for WorkerStream {
    fn next(&mut self) -> BoxFuture<'_, Option<ModelEvent>> {
        Box::pin(self.take())
    }
}

impl Drop for WorkerStream {
    fn drop(&mut self) {
        let was_open = lock(&self.turns)
            .as_mut()
            .is_some_and(|turns| turns.remove(&self.id).is_some());
        if was_open && let Ok(frame) = wire::encode(&ToWorker::Cancel { id: self.id }) {
            let _ = self.out.send(frame);
        }
    }
}

async fn write<W: AsyncWrite + Unpin>(mut input: W, mut frames: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(frame) = frames.recv().await {
        if input.write_all(&frame).await.is_err() || input.flush().await.is_err() {
            return;
        }
    }
}

async fn receive<R: AsyncRead + Unpin>(mut frames: Reader<R>, turns: Turns) {
    while let Ok(Some(message)) = frames.next().await {
        match message {
            FromWorker::Event { id, event } => {
                let sender = lock(&turns).as_ref().and_then(|all| all.get(&id).cloned());
                if let Some(sender) = sender {
                    let _ = sender.send(event).await;
                }
            }
            FromWorker::End { id } => {
                if let Some(all) = lock(&turns).as_mut() {
                    all.remove(&id);
                }
            }
            FromWorker::Ready { .. } => {}
        }
    }
    // Every open turn learns that nothing more comes.
    *lock(&turns) = None;
}

fn key_block(keys: &[Option<SecretString>]) -> Result<Zeroizing<Vec<u8>>, StartWorkerError> {
    let wrong = || StartWorkerError::Send(std::io::ErrorKind::InvalidInput.into());
    let texts = || {
        keys.iter()
            .map(|key| key.as_ref().map_or("", |key| key.expose()))
    };
    if texts().any(|key| key.contains('\n')) {
        return Err(wrong());
    }
    let length: usize = texts().map(|key| key.len() + 1).sum();
    // Taken at once: growing would leave copies behind.
    let mut block = Zeroizing::new(Vec::with_capacity(4 + length));
    let announced = u32::try_from(length).map_err(|_| wrong())?;
    block.extend_from_slice(&announced.to_be_bytes());
    for key in texts() {
        block.extend_from_slice(key.as_bytes());
        block.push(b'\n');
    }
    Ok(block)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
