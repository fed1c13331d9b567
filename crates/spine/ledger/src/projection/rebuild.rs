//! Folding a view again from the first event, beside the one in use.
//!
//! The old view stays in use until the new one is complete; at no moment do
//! readers find half a view, and no event is lost or counted twice.

use std::sync::PoisonError;

use fluffy_base::Digest;

use super::fold::{BATCH, Fold, HaltReason, Obstacle};
use super::follow::{Current, Slot};
use crate::engine::{Edition, View};
use crate::error::StoreError;

/// How often a rebuild tries to draw level before it holds the follower; a
/// ledger that grows as fast as it is read must not keep it for ever.
const ROUNDS: usize = 5;

/// What a rebuild found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rebuilt {
    /// The last event in both views when they were compared.
    pub seq: u64,
    /// The digest of the old view, if it stood still at that event.
    pub before: Option<Digest>,
    /// The digest of the new view.
    pub after: Digest,
}

impl Rebuilt {
    /// Whether the old view was as it should have been.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.before == Some(self.after)
    }
}

/// Why a view was not rebuilt. The one that was there stays.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// No such projection runs.
    #[error("there is no projection `{name}`")]
    Unknown {
        /// The name.
        name: String,
    },
    /// An event can't be applied.
    #[error("the rebuild of `{name}` can't pass event {seq}")]
    Halted {
        /// The view.
        name: String,
        /// The event.
        seq: u64,
        /// Why not.
        #[source]
        reason: HaltReason,
    },
    /// The storage failed.
    #[error("the storage failed during the rebuild of `{name}`")]
    Store {
        /// The view.
        name: String,
        /// What the engine said.
        #[source]
        source: StoreError,
    },
}

pub(super) fn rebuild(slot: &Slot) -> Result<Rebuilt, RebuildError> {
    let _alone = slot
        .rebuilding
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let rebuilt = replay(slot).map_err(|obstacle| describe(slot, obstacle))?;
    slot.nudge();
    if !rebuilt.is_equal() {
        let projection = slot.fold.projection.name();
        tracing::warn!(
            projection,
            seq = rebuilt.seq,
            "the rebuilt view differs from the old one"
        );
    }
    Ok(rebuilt)
}

fn replay(slot: &Slot) -> Result<Rebuilt, Obstacle> {
    let fold = &slot.fold;
    let mut next = fold.open(Edition::Next)?;
    let mut applied = 0;
    // Most of the way beside the follower, which goes on meanwhile: each round
    // has to make up only for what came during the one before …
    for _ in 0..ROUNDS {
        let target = slot.progress.borrow().applied;
        if applied + BATCH as u64 > target {
            break;
        }
        applied = up_to(fold, &mut next, applied, target)?;
    }
    // … and the rest while it is held.
    let mut current = slot.current();
    // A view that can't be read any more is all the more reason to rebuild it.
    let target = current
        .view
        .applied()
        .unwrap_or(current.applied)
        .max(applied);
    applied = up_to(fold, &mut next, applied, target)?;
    let after = fold.digest(&mut next)?;
    let before = fold.digest(&mut current.view).ok();
    // Another process may have moved the old view on in between.
    let still = current.view.applied().is_ok_and(|seq| seq == applied);
    fold.engine.publish_view(fold.projection.name(), next)?;
    let mut view = fold.open(Edition::Current)?;
    let applied_now = view.applied()?;
    *current = Current {
        view,
        applied: applied_now,
    };
    slot.advance(applied_now);
    Ok(Rebuilt {
        seq: applied,
        before: before.filter(|_| still),
        after,
    })
}

/// Brings a view at `applied` to `target`, or to the end of the ledger.
fn up_to(fold: &Fold, view: &mut View, applied: u64, target: u64) -> Result<u64, Obstacle> {
    let mut applied = applied;
    while applied < target {
        let left = usize::try_from(target - applied).unwrap_or(BATCH);
        let reached = fold.step(view, applied, left.min(BATCH))?;
        if reached == applied {
            break;
        }
        applied = reached;
    }
    Ok(applied)
}

fn describe(slot: &Slot, obstacle: Obstacle) -> RebuildError {
    let name = slot.fold.projection.name().to_owned();
    match obstacle {
        Obstacle::Event { seq, reason } => RebuildError::Halted { name, seq, reason },
        Obstacle::Store(source) => RebuildError::Store { name, source },
    }
}
