//! The fold: what each event changes.
//!
//! Depends on the event and the state before it, and on nothing else: no clock,
//! no chance. Believes every event, because whoever appended it checked it;
//! what it cannot place changes nothing. Next: `tenancy`, then the others.

mod instances;
mod network;
mod nodes;
mod rollout;
mod storage;
mod tenancy;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::str::FromStr;

use fluffy_base::Timestamp;
use fluffy_base::id::{AppId, EnvId, OrgId};
use fluffy_ledger::Event;

use super::Runtime;
use crate::event::Body;

/// How many ended things of a kind are kept, beside those that are not over.
const KEPT: usize = 1000;

/// Folds one event in; gives back what is forgotten with it.
pub(super) fn apply(
    runtime: &mut Runtime,
    event: &Event,
    body: &Body,
) -> Vec<(&'static str, String)> {
    let forgotten = RefCell::default();
    let at = At { event, forgotten };
    runtime.heard_at = Some(event.occurred_at);
    tenancy::apply(runtime, &at, body);
    rollout::apply(runtime, &at, body);
    instances::apply(runtime, &at, body);
    nodes::apply(runtime, &at, body);
    network::apply(runtime, &at, body);
    storage::apply(runtime, &at, body);
    at.forgotten.into_inner()
}

/// Where and when an event happened, and what is forgotten with it.
struct At<'a> {
    event: &'a Event,
    forgotten: RefCell<Vec<(&'static str, String)>>,
}

impl At<'_> {
    /// Says of an aggregate that it gets no event any more: whatever decides
    /// about it finds it nowhere.
    fn forget(&self, kind: &'static str, id: impl ToString) {
        self.forgotten.borrow_mut().push((kind, id.to_string()));
    }

    /// The aggregate, if its id is of this kind.
    fn id<T: FromStr>(&self) -> Option<T> {
        self.event.aggregate.id.parse().ok()
    }

    fn org(&self) -> Option<OrgId> {
        self.event.scope.org_id.as_deref()?.parse().ok()
    }

    fn app(&self) -> Option<AppId> {
        self.event.scope.app_id.as_deref()?.parse().ok()
    }

    fn env(&self) -> Option<EnvId> {
        self.event.scope.env_id.as_deref()?.parse().ok()
    }

    fn now(&self) -> Timestamp {
        self.event.occurred_at
    }

    fn seq(&self) -> u64 {
        self.event.seq
    }

    fn actor(&self) -> String {
        self.event.actor.id.clone()
    }

    /// For whom the actor acted, which may be for itself.
    fn on_behalf_of(&self) -> String {
        let actor = &self.event.actor;
        actor.on_behalf_of.as_ref().unwrap_or(&actor.id).clone()
    }
}

/// Keeps what has ended, and drops the oldest of too many; which one, if any.
fn keep<K: Copy + Ord, V>(map: &mut BTreeMap<K, V>, ended: &mut VecDeque<K>, id: K) -> Option<K> {
    ended.push_back(id);
    let oldest = (ended.len() > KEPT).then(|| ended.pop_front()).flatten()?;
    map.remove(&oldest);
    Some(oldest)
}

/// Drops what is not kept of a map, and forgets it.
fn retain<K: Copy + Ord + ToString, V>(
    at: &At<'_>,
    kind: &'static str,
    map: &mut BTreeMap<K, V>,
    is_kept: impl Fn(&V) -> bool,
) {
    map.retain(|id, it| {
        let kept = is_kept(it);
        if !kept {
            at.forget(kind, *id);
        }
        kept
    });
}
