//! Decides jobs on exact state and appends what follows, one group at a time.
//!
//! One thread owns the order: it decides what waits on a state that stands at
//! the end of the ledger, appends on condition that the ledger still ends
//! there, and otherwise takes in what others appended and decides again. So
//! whatever a decision rests on holds in the append. Readers see a second
//! state, which only ever holds what is committed. Next: `sequencer/turns.rs`.

mod lag;
mod turns;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fluffy_base::{Clock, SystemClock};
use fluffy_control::event::readable_since;
use fluffy_ledger::{AppendError, DraftError, Event, Ledger, StoreError};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::fold::{self, Fold, FoldError, Machine, Position};

pub use lag::{Lag, LagReport};

/// How many jobs may wait; more are kept out until there is room.
const WAITING: usize = 1_024;
/// How long a job may wait for room.
const ADMISSION: Duration = Duration::from_secs(5);

/// The handle of a sequencer, to be cloned freely.
pub struct Sequencer<M: Machine> {
    shared: Arc<Shared<M>>,
    door: Arc<Door<M>>,
}

/// The way in, which ends with the last handle, and the thread with it.
struct Door<M: Machine> {
    jobs: Mutex<Option<mpsc::Sender<Waiting<M>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// How a sequencer starts.
pub struct SequencerOptions<M> {
    /// Gives saved folds, the newest for 0; each is checked before use.
    pub recall: Recall<M>,
    /// Where events are that have left the ledger.
    pub archive: Option<PathBuf>,
    /// Where the time of events and of lag comes from.
    pub clock: Arc<dyn Clock>,
    /// Since which version readers know an event.
    pub since: Since,
    /// Hears of every event that comes to readers from now on.
    pub seen: Seen,
}

/// Hears of events, in order; it should not take long.
pub type Seen = Arc<dyn Fn(&Event) + Send + Sync>;

/// Since which version readers know events of a type and version.
pub type Since = fn(&str, u32) -> u64;

/// Gives saved folds, the newest for 0, the one before for 1, ….
pub type Recall<M> = Arc<dyn Fn(usize) -> Option<Fold<M>> + Send + Sync>;

/// What became of a job that is in the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<R> {
    /// What the machine said.
    pub reply: R,
    /// The last event of the job, or the one it was decided after.
    pub position: Position,
}

/// Why a job was not done.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SubmitError {
    /// Too much waits, or others kept getting ahead; nothing was appended.
    #[error("too many requests wait to be decided")]
    Busy,
    /// The ledger can't be written or read; nothing was appended.
    #[error("the ledger is not available")]
    Unavailable(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The ledger is not what was written, and nobody has accepted that.
    #[error("the chain of the ledger is broken at event {seq}")]
    Broken {
        /// The first event that is wrong or missing.
        seq: u64,
    },
    /// The connection broke, and whether it was appended can't be found out.
    #[error("whether the request was recorded can't be found out now")]
    OutcomeUnknown(#[source] AppendError),
    /// What the machine wants appended can't be; a mistake of ours.
    #[error("the decision can't be recorded")]
    Unrecordable(#[from] DraftError),
    /// Not every replica can read what would be appended; nothing was.
    #[error(
        "not every server can read `{event_type}` yet: that takes readers of version {needed}, \
         and all that run are known to be of version {readers}"
    )]
    Unreadable {
        /// The type of the event.
        event_type: String,
        /// Since which version readers know it.
        needed: u64,
        /// The version that all have, as the ledger says.
        readers: u64,
    },
    /// The ledger holds an event that this version does not know.
    #[error("this replica stopped at an event it does not know")]
    Halted(#[source] FoldError),
    /// The sequencer is closed.
    #[error("the server shuts down")]
    Closed,
}

/// The position was not reached in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("event {} is not applied yet; {} is", wanted.seq, applied.seq)]
pub struct Late {
    /// The position that was waited for.
    pub wanted: Position,
    /// The position that was reached.
    pub applied: Position,
}

/// Why a sequencer can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartSequencerError {
    /// The state can't be folded.
    #[error("the state can't be read from the ledger")]
    Fold(#[from] FoldError),
    /// The system gave no thread.
    #[error("no thread for the sequencer")]
    Thread(#[source] std::io::Error),
}

/// A job on its way.
struct Waiting<M: Machine> {
    job: M::Job,
    since: Instant,
    reply: oneshot::Sender<Result<Answer<M::Reply>, SubmitError>>,
}

/// What the thread and all handles share.
struct Shared<M: Machine> {
    confirmed: RwLock<Fold<M>>,
    positions: watch::Sender<Position>,
    held: AtomicBool,
    halted: Mutex<Option<FoldError>>,
    /// Readers see all that was committed before this moment.
    as_of: Mutex<Instant>,
    /// A fold that is to take the place of what readers see.
    offered: Mutex<Option<Offer<M>>>,
    lag: Lag,
}

/// A fold that is to take the place of what readers see, and who waits for it.
struct Offer<M> {
    fold: Fold<M>,
    done: oneshot::Sender<Result<Position, FoldError>>,
}

impl<M> Default for SequencerOptions<M> {
    fn default() -> Self {
        Self {
            recall: Arc::new(|_| None),
            archive: None,
            clock: Arc::new(SystemClock),
            since: readable_since,
            seen: Arc::new(|_| {}),
        }
    }
}

impl<M: Machine> Sequencer<M> {
    /// Folds the ledger to its end and starts to take jobs. Blocks meanwhile.
    ///
    /// # Errors
    /// The ledger can't be read, or holds what this version does not know.
    pub fn start(
        ledger: Ledger,
        options: SequencerOptions<M>,
    ) -> Result<Self, StartSequencerError> {
        let fold = fold::refold(&ledger, &*options.recall, options.archive.as_deref())?;
        let (jobs, waiting) = mpsc::channel(WAITING);
        let (positions, _) = watch::channel(fold.position);
        let shared = Arc::new(Shared {
            confirmed: RwLock::new(fold),
            positions,
            held: AtomicBool::new(false),
            halted: Mutex::new(None),
            as_of: Mutex::new(Instant::now()),
            offered: Mutex::new(None),
            lag: Lag::default(),
        });
        let turns = turns::Turns::new(ledger, Arc::clone(&shared), options, waiting);
        let thread = thread::Builder::new().name("sequencer".to_owned());
        let thread = thread
            .spawn(move || turns.run())
            .map_err(StartSequencerError::Thread)?;
        let door = Arc::new(Door {
            jobs: Mutex::new(Some(jobs)),
            thread: Mutex::new(Some(thread)),
        });
        Ok(Self { shared, door })
    }

    /// Has a job decided and waits until what follows from it is committed.
    ///
    /// A job whose caller stops waiting before its turn is not done.
    ///
    /// # Errors
    /// See [`SubmitError`]; unless it says otherwise, nothing was appended.
    pub async fn submit(&self, job: M::Job) -> Result<Answer<M::Reply>, SubmitError> {
        let jobs = lock(&self.door.jobs).clone();
        let jobs = jobs.ok_or(SubmitError::Closed)?;
        let room = timeout(ADMISSION, jobs.reserve()).await;
        let room = room.map_err(|_| SubmitError::Busy)?;
        let (reply, answer) = oneshot::channel();
        room.map_err(|_| SubmitError::Closed)?.send(Waiting {
            job,
            since: Instant::now(),
            reply,
        });
        answer.await.map_err(|_| SubmitError::Closed)?
    }

    /// Looks at the state, which holds only what is committed. Whoever looks
    /// keeps it from moving on, so it should not take long.
    pub fn read<R>(&self, look: impl FnOnce(&M) -> R) -> R {
        let confirmed = self.shared.confirmed.read();
        look(&confirmed.unwrap_or_else(PoisonError::into_inner).machine)
    }

    /// A copy of the state with its place in the ledger.
    #[must_use]
    pub fn save(&self) -> Fold<M> {
        let confirmed = self.shared.confirmed.read();
        confirmed.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What readers see now.
    #[must_use]
    pub fn applied(&self) -> Position {
        *self.shared.positions.borrow()
    }

    /// Ticks with what readers see.
    #[must_use]
    pub fn positions(&self) -> watch::Receiver<Position> {
        self.shared.positions.subscribe()
    }

    /// Waits until readers see a position; a later epoch counts as seen.
    ///
    /// # Errors
    /// It took longer than `limit`.
    pub async fn wait_for(&self, wanted: Position, limit: Duration) -> Result<Position, Late> {
        let mut positions = self.positions();
        let reached = timeout(limit, positions.wait_for(|position| *position >= wanted)).await;
        match reached {
            Ok(Ok(position)) => Ok(*position),
            // The sender lives as long as this handle.
            Ok(Err(_)) | Err(_) => Err(Late {
                wanted,
                applied: self.applied(),
            }),
        }
    }

    /// Puts a fold of this ledger in the place of the state that is held, once
    /// it has caught up with it; where the two differ, the fold is right.
    ///
    /// # Errors
    /// The fold can't follow the ledger to its end; the state is as before.
    pub async fn install(&self, fold: Fold<M>) -> Result<Position, FoldError> {
        if lock(&self.door.jobs).is_none() {
            return Err(FoldError::Interrupted);
        }
        let (done, installed) = oneshot::channel();
        *lock(&self.shared.offered) = Some(Offer { fold, done });
        installed.await.map_err(|_| FoldError::Interrupted)?
    }

    /// Stops showing new events to readers until [`Sequencer::release`];
    /// deciding and appending go on. For drills of a view that lags.
    pub fn hold(&self) {
        self.shared.held.store(true, Ordering::Release);
    }

    /// Shows readers what came since [`Sequencer::hold`].
    pub fn release(&self) {
        self.shared.held.store(false, Ordering::Release);
    }

    /// How long ago it was last known that readers see all that is committed.
    /// What was decided since then, by whichever replica, they may not know.
    #[must_use]
    pub fn behind(&self) -> Duration {
        lock(&self.shared.as_of).elapsed()
    }

    /// How long events took to reach readers, lately; those that were not
    /// looked for count as well, because nobody knows how many there are.
    #[must_use]
    pub fn lag(&self) -> LagReport {
        let beyond = self.behind().saturating_sub(turns::POLL);
        self.shared.lag.report().behind(beyond)
    }

    /// Why this replica stopped, if it did.
    #[must_use]
    pub fn halted(&self) -> Option<FoldError> {
        lock(&self.shared.halted).clone()
    }

    /// Decides what waits, and ends. Blocks meanwhile; readers may go on.
    pub fn close(&self) {
        drop(lock(&self.door.jobs).take());
        let thread = lock(&self.door.thread).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the sequencer panicked");
        }
    }
}

impl From<StoreError> for SubmitError {
    fn from(error: StoreError) -> Self {
        Self::Unavailable(Arc::new(error))
    }
}

impl<M: Machine> Clone for Sequencer<M> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            door: Arc::clone(&self.door),
        }
    }
}

impl<M: Machine> fmt::Debug for Sequencer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequencer")
            .field("applied", &self.applied())
            .finish_non_exhaustive()
    }
}

impl<M> fmt::Debug for SequencerOptions<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SequencerOptions").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
