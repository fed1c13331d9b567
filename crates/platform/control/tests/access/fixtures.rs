//! One example of every event in the catalogue, as it was first written.
//!
//! The file only ever grows: what was written once is read for ever.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_control::event::{Body, FIRST_READERS, READER_VERSION, readable_since};
use fluffy_control::{Fact, State};
use fluffy_ledger::{Actor, Aggregate, Domain, Draft, Event, Scope};
use serde::Deserialize;
use serde_json::Value;

const EXAMPLES: &str = include_str!("../fixtures/events.json");

#[derive(Deserialize)]
struct Example {
    #[serde(rename = "type")]
    event_type: String,
    version: u32,
    aggregate: String,
    scope: Vec<String>,
    payload: Value,
}

impl Example {
    fn scope(&self) -> Scope {
        let id = |part: &str| {
            let named = self.scope.iter().any(|one| one == part);
            named.then(|| format!("{part}_01J00000000000000000000001"))
        };
        Scope {
            org_id: id("org"),
            app_id: id("app"),
            env_id: id("env"),
        }
    }

    fn event(&self, seq: u64, version: u64, kind: &str) -> Event {
        let aggregate = Aggregate::new(kind, self.aggregate.clone());
        let actor = Actor::system("test");
        let mut draft = Draft::new(Domain::Platform, aggregate, self.event_type.as_str(), actor)
            .event_version(self.version)
            .payload(self.payload.clone())
            .scope(self.scope());
        let now = "2026-11-16T08:00:00Z".parse().unwrap();
        draft.foresee(seq, version, now).unwrap()
    }
}

/// The history that all examples make, as facts.
pub(crate) fn made() -> Vec<Fact> {
    let gone = ["collected", "deleted", "removed", "retired", "revoked"];
    let kept = examples().into_iter().filter(|one| {
        let verb = one.event_type.split('.').next_back().unwrap();
        !gone.contains(&verb)
    });
    let facts = kept.map(|one| {
        let body = Body::read(&one.event(1, 1, "any")).unwrap();
        let scope = one.scope();
        Fact::new(&one.aggregate, body).of(&scope)
    });
    facts.collect()
}

fn examples() -> Vec<Example> {
    serde_json::from_str(EXAMPLES).unwrap()
}

#[test]
fn every_event_type_has_an_example_that_reads_and_folds() {
    let mut counts: BTreeMap<(String, u32), usize> = BTreeMap::new();
    let mut versions: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut state = State::default();
    for (seq, example) in (1..).zip(examples()) {
        let name = &example.event_type;
        let body = Body::read(&example.event(1, 1, "any"))
            .unwrap_or_else(|error| panic!("{name}: {error:?}"));
        assert_eq!(body.event_type(), name);
        assert_eq!(
            body.payload(),
            example.payload,
            "{name} reads back otherwise"
        );
        let kind = body.aggregate_kind();
        let version = versions
            .entry((kind.to_owned(), example.aggregate.clone()))
            .or_default();
        *version += 1;
        state
            .apply(&example.event(seq, *version, kind))
            .unwrap_or_else(|error| panic!("{name}: {error:?}"));
        *counts.entry((name.clone(), example.version)).or_default() += 1;
    }
    for (name, version) in Body::TYPES {
        let found = counts.get(&((*name).to_owned(), *version));
        assert_eq!(found, Some(&1), "examples of `{name}` version {version}");
    }
    let bytes = postcard::to_allocvec(&state).unwrap();
    let back: State = postcard::from_bytes(&bytes).unwrap();
    assert_eq!(back, state, "a snapshot is the same state");
    assert_eq!(back.digests(), state.digests());
}

/// What the first readers know is a file that never changes: whatever is not in
/// it is of a later version, and waits until every replica has that.
#[test]
fn what_the_first_readers_do_not_know_is_of_a_later_version() {
    let first: BTreeSet<&str> = include_str!("../fixtures/readers-1.txt").lines().collect();
    let second: BTreeSet<&str> = include_str!("../fixtures/readers-2.txt").lines().collect();
    let mut newest = FIRST_READERS;
    for (name, version) in Body::TYPES {
        let (line, since) = (format!("{name} {version}"), readable_since(name, *version));
        let is_first = since == FIRST_READERS;
        assert_eq!(
            is_first,
            first.contains(line.as_str()),
            "`{line}` is read since version {since}: what is new goes to `LATER` of event.rs"
        );
        assert_eq!(since == 2, second.contains(line.as_str()), "`{line}`");
        newest = newest.max(since);
    }
    assert_eq!(
        newest, READER_VERSION,
        "this build reads all that it writes"
    );
}

#[test]
fn an_unknown_event_stops_the_fold_and_changes_nothing() {
    let mut example = examples().remove(0);
    let mut state = State::default();
    for (name, version) in [("app.invented", 1), ("cluster.initialized", 2)] {
        name.clone_into(&mut example.event_type);
        example.version = version;
        assert!(state.apply(&example.event(1, 1, "cluster")).is_err());
        assert_eq!(state, State::default());
    }
}

#[test]
fn a_word_of_a_later_version_stops_the_fold_too() {
    for (name, word) in [("instance.allocated", "driver"), ("deploy.created", "kind")] {
        let mut example = examples().into_iter().find(|it| it.event_type == name);
        let example = example.as_mut().unwrap();
        let known = example.event(1, 1, "any");
        assert!(Body::read(&known).is_ok(), "{name}");
        example.payload[word] = "invented".into();
        let mut state = State::default();
        let stopped = state.apply(&example.event(1, 1, "any")).unwrap_err();
        let why = std::error::Error::source(&stopped).unwrap().to_string();
        assert!(why.contains(word), "{why}");
        assert_eq!(state, State::default());
    }
}
