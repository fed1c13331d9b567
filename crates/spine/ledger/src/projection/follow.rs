//! The thread that keeps one view up to date.
//!
//! One thread per projection, so that none waits for another's trouble.
//! Trouble is shown in [`Progress`] and never passed over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::fold::{BATCH, Fold, HaltReason, Obstacle};
use crate::engine::{Edition, View};
use crate::error::StoreError;
use crate::wake::Wake;

/// The shortest pause after the storage failed …
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// … and the longest.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// How far a projection is, and how it fares.
#[derive(Debug, Clone)]
pub struct Progress {
    /// The last event that is in the view.
    pub applied: u64,
    /// How it fares.
    pub state: ProjectionState,
}

/// How a projection fares.
#[derive(Debug, Clone)]
pub enum ProjectionState {
    /// It applies events as they come.
    Following,
    /// It stands before an event it can't apply, and will not pass it.
    Halted {
        /// The event.
        seq: u64,
        /// Why it can't be applied.
        reason: Arc<HaltReason>,
    },
    /// Its storage fails; it keeps trying.
    Failing(StoreError),
}

/// One projection, shared by its thread and the handle.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) fold: Fold,
    pub(super) progress: watch::Sender<Progress>,
    /// One rebuild at a time: there is one place for the next edition.
    pub(super) rebuilding: Mutex<()>,
    current: Mutex<Current>,
    nudge: watch::Sender<u64>,
    stopping: AtomicBool,
}

/// The view that readers see, and where it is.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) view: View,
    pub(super) applied: u64,
}

impl Slot {
    pub(super) fn open(fold: Fold) -> Result<Self, StoreError> {
        let mut view = fold.open(Edition::Current)?;
        let applied = view.applied()?;
        let progress = Progress {
            applied,
            state: ProjectionState::Following,
        };
        Ok(Self {
            fold,
            progress: watch::Sender::new(progress),
            rebuilding: Mutex::default(),
            current: Mutex::new(Current { view, applied }),
            nudge: watch::Sender::new(0),
            stopping: AtomicBool::new(false),
        })
    }

    /// Keeps the view up to date until [`Slot::stop`].
    pub(super) fn follow(&self, news: Wake) {
        let mut news = news.also(self.nudge.subscribe());
        let mut nudged = Wake::only(self.nudge.subscribe());
        let (mut limit, mut pause) = (BATCH, MIN_PAUSE);
        while !self.stopping.load(Ordering::Acquire) {
            match self.step(limit) {
                Ok(Step::Further) => {
                    limit = (limit * 2).min(BATCH);
                    pause = MIN_PAUSE;
                }
                Ok(Step::Level) => news.wait_blocking(Duration::MAX),
                Err(obstacle) => {
                    let patience = match obstacle {
                        Obstacle::Event { .. } => MAX_PAUSE,
                        Obstacle::Store(_) => pause,
                    };
                    self.report(obstacle);
                    // Smaller steps bring it right up to the event whose
                    // statements the storage refuses.
                    limit = (limit / 2).max(1);
                    pause = (pause * 2).min(MAX_PAUSE);
                    nudged.wait_blocking(patience);
                }
            }
        }
    }

    /// Has the thread look again now.
    pub(super) fn nudge(&self) {
        self.nudge
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Tells the thread to end after the step it is in.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.nudge();
    }

    pub(super) fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows where the view is, and that all is well.
    pub(super) fn advance(&self, applied: u64) {
        self.progress.send_if_modified(|progress| {
            let following = matches!(progress.state, ProjectionState::Following);
            let changed = progress.applied != applied || !following;
            if changed {
                progress.applied = applied;
                progress.state = ProjectionState::Following;
            }
            changed
        });
    }

    fn step(&self, limit: usize) -> Result<Step, Obstacle> {
        let mut current = self.current();
        let from = current.applied;
        let to = self.fold.step(&mut current.view, from, limit)?;
        current.applied = to;
        self.advance(to);
        Ok(if to == from {
            Step::Level
        } else {
            Step::Further
        })
    }

    fn report(&self, obstacle: Obstacle) {
        let name = self.fold.projection.name();
        let state = match obstacle {
            Obstacle::Event { seq, reason } => {
                let known = matches!(
                    self.progress.borrow().state,
                    ProjectionState::Halted { seq: at, .. } if at == seq
                );
                if !known {
                    let error = &reason as &dyn std::error::Error;
                    tracing::error!(projection = name, seq, error, "projection halted");
                }
                let reason = Arc::new(reason);
                ProjectionState::Halted { seq, reason }
            }
            Obstacle::Store(error) => {
                let cause = &error as &dyn std::error::Error;
                tracing::warn!(
                    projection = name,
                    error = cause,
                    "projection's storage fails"
                );
                ProjectionState::Failing(error)
            }
        };
        self.progress.send_modify(|progress| progress.state = state);
    }
}

/// Where a step has led.
enum Step {
    /// There may be more events.
    Further,
    /// The view is level with the ledger.
    Level,
}
