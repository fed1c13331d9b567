//! Real events by the million: what command handlers decided, as drafts.
//!
//! Nothing is kept that was handed out, so a history may be as long as one
//! likes.

use std::collections::BTreeMap;

use fluffy_base::{Digest, Timestamp};
use fluffy_control::{Body, State};
use fluffy_ledger::{Actor, Aggregate, Domain, Draft, Event, Scope};
use serde_json::Value;

use crate::history::History;

/// One example of every event in each version that it ever had.
const EXAMPLES: &str = include_str!("../../../control/tests/fixtures/events.json");

/// A platform that things happen to, and what became of it.
pub(crate) struct Past {
    history: History,
}

impl Past {
    /// Equal seeds give equal histories.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            history: History::new(seed, "fd00::/48"),
        }
    }

    /// What happens next, at least so many events of it.
    pub(crate) fn next(&mut self, events: usize) -> Vec<Draft> {
        while self.history.world.events.len() < events {
            self.history.step();
        }
        let events = std::mem::take(&mut self.history.world.events);
        events.iter().map(draft).collect()
    }

    /// The time there.
    pub(crate) fn now(&self) -> Timestamp {
        self.history.world.now
    }

    /// The state on which everything was decided.
    pub(crate) fn state(&self) -> &State {
        &self.history.world.state
    }

    /// Its views.
    pub(crate) fn digests(&self) -> BTreeMap<&'static str, Digest> {
        self.state().digests()
    }

    /// One of each event there is, whatever it does here.
    pub(crate) fn examples(&self) -> Vec<Draft> {
        let examples: Vec<Value> = serde_json::from_str(EXAMPLES).unwrap();
        let examples = examples.iter().map(|example| self.example(example));
        examples.collect()
    }

    fn example(&self, example: &Value) -> Draft {
        let text = |name: &str| example[name].as_str().unwrap().to_owned();
        let scope = |part: &str| {
            let mut parts = example["scope"].as_array().unwrap().iter();
            let named = parts.any(|one| one == part);
            named.then(|| format!("{part}_01J00000000000000000000001"))
        };
        // Whose it is decides who folds it.
        let kind = Body::kind_of(&text("type")).unwrap();
        let aggregate = Aggregate::new(kind, text("aggregate"));
        let version = example["version"].as_u64().unwrap();
        let actor = Actor::system("example");
        Draft::new(Domain::Platform, aggregate, text("type"), actor)
            .event_version(u32::try_from(version).unwrap())
            .payload(example["payload"].clone())
            .scope(Scope {
                org_id: scope("org"),
                app_id: scope("app"),
                env_id: scope("env"),
            })
            .occurred_at(self.now())
    }
}

/// The draft that an event was.
fn draft(event: &Event) -> Draft {
    let mut draft = Draft::new(
        event.domain,
        event.aggregate.clone(),
        event.event_type.clone(),
        event.actor.clone(),
    )
    .event_version(event.event_version)
    .payload(event.payload.value().unwrap())
    .scope(event.scope.clone())
    .occurred_at(event.occurred_at)
    .request(event.request_id.clone());
    if let Some(key) = &event.idempotency_key {
        draft = draft.idempotency(key.clone());
    }
    if let Some(correlation) = &event.correlation_id {
        draft = draft.correlation(correlation.clone());
    }
    if let Some(cause) = event.causation_seq {
        draft = draft.caused_by(cause);
    }
    if let Some(decision) = event.decision_seq {
        draft = draft.decided_by(decision);
    }
    draft
}
