//! The calls in flight on one connection, and who gets which event.
//!
//! Must never hold its lock across an await, and must never accept a call
//! after the connection ended. Next: `client.rs`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use crate::message::{Event, Failure, RequestId};

type Outcome = Result<Box<RawValue>, Failure>;

/// The calls in flight.
#[derive(Debug, Default)]
pub(super) struct CallTable(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pending: HashMap<RequestId, Pending>,
    subscriber: Option<mpsc::Sender<Event>>,
    end: Option<Ended>,
}

#[derive(Debug)]
struct Pending {
    answer: oneshot::Sender<Outcome>,
    events: Option<mpsc::Sender<Event>>,
}

#[derive(Debug)]
struct Ended {
    reason: Option<Failure>,
}

impl CallTable {
    /// Where the answer will arrive; none if the connection has ended.
    pub(super) fn register(
        &self,
        id: RequestId,
        events: Option<mpsc::Sender<Event>>,
    ) -> Option<oneshot::Receiver<Outcome>> {
        let mut state = self.lock();
        if state.end.is_some() {
            return None;
        }
        let (answer, receiver) = oneshot::channel();
        state.pending.insert(id, Pending { answer, events });
        Some(receiver)
    }

    pub(super) fn forget(&self, id: RequestId) {
        self.lock().pending.remove(&id);
    }

    /// Delivers an answer; one that nobody waits for any more is dropped.
    pub(super) fn answer(&self, id: RequestId, outcome: Outcome) {
        let pending = self.lock().pending.remove(&id);
        if let Some(pending) = pending {
            // The caller may have given up in this very moment.
            let _ = pending.answer.send(outcome);
        }
    }

    pub(super) fn subscribe(&self, subscriber: mpsc::Sender<Event>) {
        let mut state = self.lock();
        if state.end.is_none() {
            state.subscriber = Some(subscriber);
        }
    }

    /// Who wants the events of this request, or else everybody's.
    pub(super) fn events_for(&self, id: Option<RequestId>) -> Option<mpsc::Sender<Event>> {
        let state = self.lock();
        id.and_then(|id| state.pending.get(&id))
            .and_then(|pending| pending.events.clone())
            .or_else(|| state.subscriber.clone())
    }

    /// Ends all calls and the subscription.
    pub(super) fn close(&self, reason: Option<Failure>) {
        let mut state = self.lock();
        state.end = Some(Ended { reason });
        // Dropping the senders wakes everyone who waits.
        state.pending.clear();
        state.subscriber = None;
    }

    /// Why the server ended the connection, if it said so.
    pub(super) fn reason(&self) -> Option<Failure> {
        let state = self.lock();
        state.end.as_ref().and_then(|end| end.reason.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is a single step, so a panic leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
