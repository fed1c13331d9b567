//! Ledgers that rest on another: `audit verify` follows, and finds a lie there.

use std::path::{Path, PathBuf};

use fluffy_ledger::{
    Actor, ActorKind, Aggregate, Batch, Domain, Draft, Event, Ledger, LedgerOptions, Signing,
    Source,
};
use serde_json::json;

use crate::site::Site;

/// A site whose own ledger has a merge, and beside it a ledger with a deploy
/// that rests on it.
struct Story {
    site: Site,
    merge: Event,
    platform: PathBuf,
}

fn signing(site: &Site) -> Signing {
    Signing {
        key: site.state().join("keys/ledger.key"),
        checkpoints: site.checkpoints(),
        witnesses: Vec::new(),
    }
}

fn story() -> Story {
    let site = Site::initialised();
    let options = LedgerOptions {
        signing: Some(signing(&site)),
        ..LedgerOptions::default()
    };
    let own = Ledger::open(&site.ledger(), options).unwrap();
    let actor = Actor::new(ActorKind::Agent, "ses_1");
    let aggregate = Aggregate::new("layer", "lay_1");
    let draft = Draft::new(Domain::Agent, aggregate, "merge.approved", actor);
    let draft = draft.payload(json!({"steps": 2}));
    let seq = own.append_blocking(Batch::from(draft)).unwrap().last_seq;
    let merge = own.read(seq, 1).unwrap().remove(0);
    let ledger_id = own.id();
    own.close().unwrap();
    let checkpoints = std::fs::read_to_string(site.checkpoints()).unwrap();
    let notes = fluffy_ledger::checkpoint::parse_checkpoints(&checkpoints).unwrap();
    let source = Source {
        ledger_id,
        seq,
        hash: merge.hash,
        checkpoint: notes.last().unwrap().to_string(),
    };
    let platform = site.context.home().join("platform");
    rests(&platform, &[source]);
    Story {
        site,
        merge,
        platform,
    }
}

/// A ledger with one deploy for each of these.
fn rests(folder: &Path, sources: &[Source]) {
    let ledger = Ledger::open(folder, LedgerOptions::default()).unwrap();
    for source in sources {
        let actor = Actor::new(ActorKind::User, "local");
        let aggregate = Aggregate::new("deploy", format!("dep_{}", source.seq));
        let draft = Draft::new(Domain::Platform, aggregate, "deploy.created", actor);
        let draft = draft.payload(json!({"kind": "deploy"})).source(source);
        ledger.append_blocking(Batch::from(draft)).unwrap();
    }
    ledger.close().unwrap();
}

impl Story {
    fn words<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let ledger = self.platform.to_str().unwrap();
        [&["audit", "verify", "--ledger", ledger], more].concat()
    }
}

#[test]
fn a_link_into_ones_own_ledger_is_followed() {
    let story = story();
    let said = story.site.ends(0, &story.words(&[])).stdout;
    let seq = story.merge.seq;
    let words = format!("event 1 rests on event {seq} of led_");
    assert!(said.contains(&words), "{said}");
    let value = story.site.json(0, &story.words(&[]));
    assert_eq!(value["sound"], true);
    assert_eq!(value["links"]["followed"][0]["seq"], 1);
    assert_eq!(value["links"]["followed"][0]["source_seq"], seq);
    assert_eq!(value["links"]["elsewhere"], 0);
    // One's own has no links, and says nothing about any.
    assert!(!story.site.succeeds(&["audit", "verify"]).contains("links"));
}

/// Whether the other ledger is broken itself, or only not what was meant.
#[test]
fn what_was_changed_behind_a_link_is_found() {
    let story = story();
    let seq = story.merge.seq;
    let change = format!("UPDATE events SET payload = '{{\"steps\":3}}' WHERE seq = {seq}");
    story.site.attacker().execute_batch(&change).unwrap();
    let finished = story.site.ends(7, &story.words(&[]));
    assert!(finished.stderr.contains("event 1 rests on"), "{finished:?}");
    let value = story.site.json(7, &story.words(&[]));
    assert_eq!(value["sound"], false);
    assert_eq!(value["links"]["broken"]["finding"]["seq"], seq, "{value}");
    assert_eq!(value["finding"], serde_json::Value::Null);

    // A ledger that is sound in itself, but has another event there.
    let sound = self::story();
    let mut lie = Source {
        ledger_id: sound.site.json(0, &["audit", "verify"])["ledger"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap(),
        seq: sound.merge.seq,
        hash: story.merge.prev_hash,
        checkpoint: String::new(),
    };
    let other = sound.site.context.home().join("lie");
    rests(&other, std::slice::from_ref(&lie));
    let words = ["audit", "verify", "--ledger", other.to_str().unwrap()];
    let value = sound.site.json(7, &words);
    let kind = &value["links"]["broken"]["finding"]["kind"];
    assert_eq!(kind, "source_differs", "{value}");
    // Or has not come that far.
    (lie.seq, lie.hash) = (1_000_000, sound.merge.hash);
    let other = sound.site.context.home().join("future");
    rests(&other, &[lie]);
    let words = ["audit", "verify", "--ledger", other.to_str().unwrap()];
    let value = sound.site.json(7, &words);
    let kind = &value["links"]["broken"]["finding"]["kind"];
    assert_eq!(kind, "truncated", "{value}");
}

#[test]
fn a_ledger_elsewhere_is_named_or_said_to_be_missing() {
    let story = story();
    let export = story.site.context.home().join("agent.jsonl");
    let export = export.to_str().unwrap();
    story
        .site
        .succeeds(&["audit", "export", "--output", export]);
    // On another machine, which has a ledger of its own.
    let elsewhere = Site::initialised();
    let value = elsewhere.json(0, &story.words(&[]));
    assert_eq!(value["links"]["elsewhere"], 1, "{value}");
    assert_eq!(value["links"]["followed"], json!([]));
    let said = elsewhere.succeeds(&story.words(&[]));
    assert!(said.contains("not at hand"), "{said}");
    let value = elsewhere.json(0, &story.words(&["--follow", export]));
    assert_eq!(value["links"]["elsewhere"], 0, "{value}");
    assert_eq!(value["links"]["followed"][0]["seq"], 1, "{value}");
}
