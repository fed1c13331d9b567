//! Projections: views that are folded from the events and kept up to date.
//!
//! A view's checkpoint moves in the same transaction as its rows, so every
//! event counts exactly once, through crashes and with several processes.
//! A view can be thrown away and folded again from the first event, to equal
//! bytes. An event that can't be applied halts its projection and is never
//! skipped. `fold` makes one step, `follow` repeats it, `rebuild` starts over.

mod fold;
mod follow;
mod rebuild;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fluffy_base::Digest;

pub use fold::HaltReason;
pub use follow::{Progress, ProjectionState};
pub use rebuild::{RebuildError, Rebuilt};

use crate::engine::Engine;
use crate::error::StoreError;
use crate::event::Event;
use crate::ledger::Ledger;
use crate::upcast::Upcasters;
use crate::view::{ApplyError, Cell, Rows, Schema, ViewTx};
use crate::wake::{Wake, block_until};
use fold::Fold;
use follow::Slot;

/// The longest name of a projection.
const MAX_NAME: usize = 50;

/// A pure fold of events into tables.
///
/// It must depend on nothing but the event it is given: no clock, no
/// randomness, no memory. Then a rebuild gives equal bytes.
pub trait Projection: fmt::Debug + Send + Sync + 'static {
    /// The name of the view: 1 to 50 of `a-z`, `0-9`, `_`, `-`.
    fn name(&self) -> &str;

    /// The tables of the view.
    fn schema(&self) -> &Schema;

    /// Queues what the event changes; nothing if it does not concern the view.
    ///
    /// # Errors
    /// The event concerns the view, but its type, version or payload is not
    /// known. The projection then halts before it.
    fn apply(&self, event: &Event, tx: &mut ViewTx) -> Result<(), ApplyError>;
}

/// Keeps a set of projections up to date; dropping it stops them.
#[derive(Debug)]
pub struct Projector {
    engine: Arc<Engine>,
    slots: BTreeMap<String, Arc<Slot>>,
    threads: Vec<JoinHandle<()>>,
}

/// Why projections could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartProjectorError {
    /// A name can't be that of a view.
    #[error(
        "`{name}` can't name a view: 1 to {MAX_NAME} of a-z, 0-9, `_`, `-`, no `_next` at the end"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// Two projections have the same name.
    #[error("two projections are named `{name}`")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// The storage of a view can't be opened.
    #[error("the view `{name}` can't be opened")]
    Store {
        /// The view.
        name: String,
        /// What the engine said.
        #[source]
        source: StoreError,
    },
    /// The system gave no thread.
    #[error("no thread for the projection `{name}`")]
    Thread {
        /// The projection.
        name: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// Why a view gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// No such projection runs.
    #[error("there is no projection `{name}`")]
    Unknown {
        /// The name.
        name: String,
    },
    /// The storage or the query failed.
    #[error("the view `{name}` can't be read")]
    Store {
        /// The view.
        name: String,
        /// What the engine said.
        #[source]
        source: StoreError,
    },
}

/// Why waiting for a view ended without success.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// No such projection runs.
    #[error("there is no projection `{name}`")]
    Unknown {
        /// The name.
        name: String,
    },
    /// Time ran out.
    #[error("the view `{name}` is only at event {applied} after the time allowed")]
    Timeout {
        /// The view.
        name: String,
        /// Where it is.
        applied: u64,
    },
    /// It stands before an event that it can't apply.
    #[error("the view `{name}` is halted before event {seq}")]
    Halted {
        /// The view.
        name: String,
        /// The event it can't apply.
        seq: u64,
        /// Why not.
        #[source]
        reason: Arc<HaltReason>,
    },
}

/// The digest of a view and where the view was then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DigestAt {
    /// The last event in it.
    pub seq: u64,
    /// The digest of its tables, row by row.
    pub digest: Digest,
}

impl Projector {
    /// Opens the views and starts one thread for each.
    ///
    /// # Errors
    /// A name is unusable or taken twice, or a view can't be opened.
    pub fn start(
        ledger: &Ledger,
        projections: Vec<Arc<dyn Projection>>,
        upcasters: Upcasters,
    ) -> Result<Self, StartProjectorError> {
        let engine = Arc::clone(&ledger.shared.engine);
        let upcasters = Arc::new(upcasters);
        let mut projector = Self {
            engine: Arc::clone(&engine),
            slots: BTreeMap::new(),
            threads: Vec::new(),
        };
        for projection in projections {
            let name = checked_name(projection.name())?;
            if projector.slots.contains_key(&name) {
                return Err(StartProjectorError::Duplicate { name });
            }
            let fold = Fold::new(Arc::clone(&engine), projection, Arc::clone(&upcasters));
            let slot = fold.and_then(Slot::open).map_err(|source| {
                let name = name.clone();
                StartProjectorError::Store { name, source }
            })?;
            let slot = Arc::new(slot);
            let news = Wake::new(ledger.shared.commits.clone(), &engine);
            let thread = thread::Builder::new()
                .name(format!("view-{name}"))
                .spawn({
                    let slot = Arc::clone(&slot);
                    move || slot.follow(news)
                })
                .map_err(|source| {
                    let name = name.clone();
                    StartProjectorError::Thread { name, source }
                })?;
            projector.slots.insert(name, slot);
            projector.threads.push(thread);
        }
        Ok(projector)
    }

    /// The names of the projections, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.slots.keys().map(String::as_str)
    }

    /// How far a projection is, and how it fares.
    ///
    /// # Errors
    /// There is no such projection.
    pub fn progress(&self, name: &str) -> Result<Progress, ViewError> {
        Ok(self.slot(name)?.progress.borrow().clone())
    }

    /// How many events of the ledger are not in the view yet.
    ///
    /// # Errors
    /// There is no such projection, or the ledger can't be read.
    pub fn lag(&self, name: &str) -> Result<u64, ViewError> {
        let slot = self.slot(name)?;
        let head = self
            .engine
            .head()
            .map_err(|source| view_error(name, source))?;
        let applied = slot.progress.borrow().applied;
        Ok(head.seq.saturating_sub(applied))
    }

    /// Waits until the event is in the view: read your own writes.
    ///
    /// # Errors
    /// Time ran out, or the projection is halted at or before the event.
    pub async fn wait_for(&self, name: &str, seq: u64, timeout: Duration) -> Result<(), WaitError> {
        let slot = self.slot(name).map_err(|_| unknown(name))?;
        let reached = tokio::time::timeout(timeout, reach(slot, seq)).await;
        reached.unwrap_or_else(|_| Err(late(slot)))
    }

    /// As [`Projector::wait_for`], for a caller that may block.
    ///
    /// # Errors
    /// As [`Projector::wait_for`].
    pub fn wait_for_blocking(
        &self,
        name: &str,
        seq: u64,
        timeout: Duration,
    ) -> Result<(), WaitError> {
        /// Stands for any time longer than a process runs.
        const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        let slot = self.slot(name).map_err(|_| unknown(name))?;
        let deadline = Instant::now() + timeout.min(FOREVER);
        let reached = block_until(reach(slot, seq), deadline);
        reached.unwrap_or_else(|| Err(late(slot)))
    }

    /// Runs one read-only query with `$1`, `$2` … for its parameters.
    ///
    /// # Errors
    /// There is no such projection, or the query fails.
    pub fn query(&self, name: &str, sql: &str, params: &[Cell]) -> Result<Rows, ViewError> {
        self.slot(name)?;
        let rows = self.engine.query_view(name, sql, params);
        rows.map_err(|source| view_error(name, source))
    }

    /// The digest of the view as it is now; holds the projection meanwhile.
    ///
    /// # Errors
    /// There is no such projection, or the view can't be read.
    pub fn digest(&self, name: &str) -> Result<DigestAt, ViewError> {
        let slot = self.slot(name)?;
        let mut current = slot.current();
        let digest = slot.fold.digest(&mut current.view);
        Ok(DigestAt {
            digest: digest.map_err(|source| view_error(name, source))?,
            seq: current.applied,
        })
    }

    /// Folds the view again from the first event, compares it with the one
    /// there is, and puts it in its place. Readers see the old one meanwhile.
    ///
    /// # Errors
    /// There is no such projection, an event can't be applied, or storage
    /// fails; the view that was there stays.
    pub fn rebuild(&self, name: &str) -> Result<Rebuilt, RebuildError> {
        let slot = self.slots.get(name).ok_or_else(|| RebuildError::Unknown {
            name: name.to_owned(),
        })?;
        rebuild::rebuild(slot)
    }

    /// Ends all threads, each after the step it is in.
    pub fn stop(self) {
        drop(self);
    }

    fn slot(&self, name: &str) -> Result<&Slot, ViewError> {
        let slot = self.slots.get(name).ok_or_else(|| ViewError::Unknown {
            name: name.to_owned(),
        })?;
        Ok(slot)
    }
}

impl Drop for Projector {
    fn drop(&mut self) {
        self.slots.values().for_each(|slot| slot.stop());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a projection's thread panicked");
            }
        }
    }
}

async fn reach(slot: &Slot, seq: u64) -> Result<(), WaitError> {
    let mut progress = slot.progress.subscribe();
    let there = progress.wait_for(|progress| {
        let halted = matches!(progress.state, ProjectionState::Halted { seq: at, .. } if at <= seq);
        progress.applied >= seq || halted
    });
    // The sender lives in the slot, so it can't be gone.
    let Ok(progress) = there.await else {
        return Err(late(slot));
    };
    match &progress.state {
        ProjectionState::Halted { seq: at, reason } if progress.applied < seq => {
            Err(WaitError::Halted {
                name: slot.fold.projection.name().to_owned(),
                seq: *at,
                reason: Arc::clone(reason),
            })
        }
        _ => Ok(()),
    }
}

fn late(slot: &Slot) -> WaitError {
    WaitError::Timeout {
        name: slot.fold.projection.name().to_owned(),
        applied: slot.progress.borrow().applied,
    }
}

fn unknown(name: &str) -> WaitError {
    let name = name.to_owned();
    WaitError::Unknown { name }
}

fn view_error(name: &str, source: StoreError) -> ViewError {
    let name = name.to_owned();
    ViewError::Store { name, source }
}

/// Only names that both engines take: they become files and schemas.
fn checked_name(name: &str) -> Result<String, StartProjectorError> {
    let known = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-'
    };
    let fits = (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(known);
    if !fits || name.ends_with("_next") {
        let name = name.chars().take(64).collect();
        return Err(StartProjectorError::Name { name });
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_both_engines_take_pass() {
        for name in ["a", "session-list_2", &"x".repeat(MAX_NAME)] {
            assert_eq!(checked_name(name).unwrap(), name);
        }
        for name in [
            "",
            "../up",
            "a.next",
            "a_next",
            "Ä",
            "A",
            &"x".repeat(MAX_NAME + 1),
        ] {
            assert!(
                matches!(checked_name(name), Err(StartProjectorError::Name { .. })),
                "{name}"
            );
        }
    }
}
