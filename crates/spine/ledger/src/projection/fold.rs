//! One step of a projection: some events in, one transaction out.
//!
//! Never skips: a step ends before the first event that can't be applied. The
//! follower and a rebuild both go through here, so they can't differ.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fluffy_base::Digest;

use super::Projection;
use crate::engine::{Edition, Engine, View};
use crate::error::StoreError;
use crate::event::Event;
use crate::subscribe::{SubscriptionError, read_on};
use crate::upcast::{UpcastError, Upcasters};
use crate::view::{ApplyError, Schema, ViewTx};

/// The most events in one transaction.
pub(super) const BATCH: usize = 500;

/// A projection with all it needs to fold events.
#[derive(Debug)]
pub(super) struct Fold {
    pub(super) engine: Arc<Engine>,
    pub(super) projection: Arc<dyn Projection>,
    pub(super) upcasters: Arc<Upcasters>,
    /// The projection's schema, bound to this ledger by its version.
    schema: Schema,
}

/// Why a projection stands before an event.
#[derive(Debug, thiserror::Error)]
pub enum HaltReason {
    /// The projection can't apply it.
    #[error("the event can't be applied")]
    Apply(#[source] ApplyError),
    /// Its payload can't be lifted to the newest schema.
    #[error("the event can't be lifted to the newest schema")]
    Upcast(#[source] UpcastError),
    /// It can't be read from the ledger.
    #[error("the event can't be read")]
    Read(#[source] SubscriptionError),
    /// The projection panicked, which is a bug in it.
    #[error("the projection panicked")]
    Panicked,
}

/// What keeps a step from getting anywhere.
#[derive(Debug)]
pub(super) enum Obstacle {
    /// This event, until the program or the ledger changes.
    Event { seq: u64, reason: HaltReason },
    /// The storage, which may be tried again.
    Store(StoreError),
}

impl From<StoreError> for Obstacle {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Fold {
    pub(super) fn new(
        engine: Arc<Engine>,
        projection: Arc<dyn Projection>,
        upcasters: Arc<Upcasters>,
    ) -> Result<Self, StoreError> {
        let schema = bound_schema(&engine, projection.schema())?;
        Ok(Self {
            engine,
            projection,
            upcasters,
            schema,
        })
    }

    /// Opens an edition of the view.
    pub(super) fn open(&self, edition: Edition) -> Result<View, StoreError> {
        self.engine
            .view(self.projection.name(), &self.schema, edition)
    }

    pub(super) fn digest(&self, view: &mut View) -> Result<Digest, StoreError> {
        view.digest(&self.schema)
    }

    /// Brings a view at `from` further by at most `limit` events and returns
    /// where it is then; the same position if there are none.
    pub(super) fn step(&self, view: &mut View, from: u64, limit: usize) -> Result<u64, Obstacle> {
        let events = read_on(&self.engine, from + 1, limit).map_err(|error| unread(from, error))?;
        let mut tx = ViewTx::default();
        let (mut to, mut obstacle) = (from, None);
        for event in events {
            let (seq, queued) = (event.seq, tx.statements.len());
            if let Err(reason) = self.apply(event, &mut tx) {
                tx.statements.truncate(queued);
                obstacle = Some(Obstacle::Event { seq, reason });
                break;
            }
            to = seq;
        }
        match obstacle {
            Some(obstacle) if to == from => Err(obstacle),
            _ if to == from => Ok(from),
            // What stands before the obstacle is applied; the next step meets it.
            _ => commit(view, &tx, from, to),
        }
    }

    fn apply(&self, event: Event, tx: &mut ViewTx) -> Result<(), HaltReason> {
        let event = self.upcasters.lift(event).map_err(HaltReason::Upcast)?;
        // What a panic leaves half queued is thrown away by the caller.
        catch_unwind(AssertUnwindSafe(|| self.projection.apply(&event, tx)))
            .map_err(|_| HaltReason::Panicked)?
            .map_err(HaltReason::Apply)
    }
}

fn commit(view: &mut View, tx: &ViewTx, from: u64, to: u64) -> Result<u64, Obstacle> {
    let Err(error) = view.commit(&tx.statements, from, to) else {
        return Ok(to);
    };
    // Another process may have applied these events first, or the commit went
    // through and only its answer was lost: the checkpoint knows.
    match view.applied() {
        Ok(applied) if applied != from => Ok(applied),
        _ => Err(Obstacle::Store(error)),
    }
}

fn unread(from: u64, error: SubscriptionError) -> Obstacle {
    let seq = from + 1;
    match error {
        SubscriptionError::Store(StoreError::Malformed { seq, column }) => Obstacle::Event {
            seq,
            reason: HaltReason::Read(SubscriptionError::Store(StoreError::Malformed {
                seq,
                column,
            })),
        },
        SubscriptionError::Store(error) => Obstacle::Store(error),
        gone => Obstacle::Event {
            seq,
            reason: HaltReason::Read(gone),
        },
    }
}

/// The schema with a version that also names the ledger and its epoch.
///
/// Positions mean nothing in another ledger or after a restore, so a view of
/// another one has to start again, as if its schema had changed.
fn bound_schema(engine: &Engine, schema: &Schema) -> Result<Schema, StoreError> {
    let digest = Digest::of_parts(&[
        engine.genesis().ledger_id.to_string().as_bytes(),
        &engine.head()?.epoch.to_be_bytes(),
        &schema.version.to_be_bytes(),
    ]);
    let [first, second, third, fourth, ..] = *digest.as_bytes();
    Ok(Schema {
        version: u32::from_be_bytes([first, second, third, fourth]),
        ..*schema
    })
}
