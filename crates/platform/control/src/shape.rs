//! The shape of the state as one digest, on which a snapshot of it depends.
//!
//! Folds one example of every event and hashes the bytes after each: whatever
//! changes how the state is laid out, or what an event does to it, changes the
//! digest. Nobody has to remember to raise a number.

use std::collections::BTreeMap;

use fluffy_base::{Digest, Timestamp};
use fluffy_ledger::{Actor, Aggregate, Domain, Draft, Scope};
use serde::Deserialize;
use serde_json::Value;

use crate::event::Body;
use crate::state::{State, digest};

/// One example of every event, as it was first written; it only ever grows.
const EXAMPLES: &str = include_str!("../tests/fixtures/events.json");

#[derive(Deserialize)]
struct Example {
    #[serde(rename = "type")]
    event_type: String,
    version: u32,
    aggregate: String,
    scope: Vec<String>,
    payload: Value,
}

/// The digest of how the state is laid out and what events do to it.
#[must_use]
pub fn shape() -> Digest {
    // A file of ours, which tests read.
    let examples: Vec<Example> = serde_json::from_str(EXAMPLES).unwrap_or_default();
    let mut state = State::default();
    let mut versions: BTreeMap<String, u64> = BTreeMap::new();
    let mut shape = Digest::of(EXAMPLES.as_bytes());
    for example in examples {
        let version = versions.entry(example.aggregate.clone()).or_default();
        *version += 1;
        example.fold_into(&mut state, *version);
        shape = Digest::of_parts(&[shape.as_bytes(), digest(&state).as_bytes()]);
    }
    shape
}

impl Example {
    fn fold_into(self, state: &mut State, version: u64) {
        let scope = |part: &str| {
            let named = self.scope.iter().any(|one| one == part);
            named.then(|| format!("{part}_01J00000000000000000000001"))
        };
        let scope = Scope {
            org_id: scope("org"),
            app_id: scope("app"),
            env_id: scope("env"),
        };
        let mut draft = Draft::new(
            Domain::Platform,
            Aggregate::new("any", self.aggregate),
            self.event_type,
            Actor::system("shape"),
        )
        .event_version(self.version)
        .payload(self.payload)
        .scope(scope)
        .request("shape");
        // One that does not fold leaves the state as it was, which shows too.
        let event = draft.foresee(state.seq + 1, version, Timestamp::from_micros(0));
        if let Ok(mut event) = event
            && let Ok(body) = Body::read(&event)
        {
            body.aggregate_kind().clone_into(&mut event.aggregate.kind);
            let _ = state.apply(&event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_that_of_a_state_with_everything_in_it() {
        assert_eq!(shape(), shape());
        let examples: Vec<Example> = serde_json::from_str(EXAMPLES).unwrap();
        let mut state = State::default();
        let mut versions: BTreeMap<String, u64> = BTreeMap::new();
        let count = examples.len() as u64;
        for example in examples {
            let version = versions.entry(example.aggregate.clone()).or_default();
            *version += 1;
            example.fold_into(&mut state, *version);
        }
        assert_eq!(state.seq, count, "every example folds");
    }
}
