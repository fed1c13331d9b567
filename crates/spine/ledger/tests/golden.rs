//! Format 1 as it was first written: every later version has to read it.
//!
//! The files under `golden/v1` were made once and are never made again. If a
//! test here fails, what was stored by users can no longer be read or proved.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::fs;
use std::path::PathBuf;

use fluffy_base::Digest;
use fluffy_ledger::checkpoint::parse_checkpoints;
use fluffy_ledger::{
    Actor, ActorKind, Compression, Domain, ExportOptions, GrowthProof, Ledger, LedgerOptions,
    Proof, PublicKey, Start, Verification, VerifyOptions, verify_path,
};

const EVENTS: u64 = 260;
const SECOND_HASH: &str = "50caece0db559c3482ae979a88210aeef714d7696f0f4309e3f70d0680520f0b";
const ROOT: &str = "3f5837c1e5cc56749e73e435e50be06375edc1be48f302c642c73133b7ef88de";

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/v1")
        .join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(golden(name)).unwrap()
}

fn key() -> PublicKey {
    text("public-key.txt").trim_end().parse().unwrap()
}

fn verify(name: &str) -> Verification {
    let options = VerifyOptions {
        against: vec![text("checkpoints.txt")],
        key: Some(key()),
        ..VerifyOptions::default()
    };
    verify_path(&golden(name), &options).unwrap()
}

#[test]
fn the_database_and_its_exports_verify() {
    for name in ["ledger.db", "export.jsonl", "export.jsonl.zst"] {
        let report = verify(name);
        assert_eq!(report.verdict, Ok(()), "{name}");
        assert_eq!(
            (report.start, report.events),
            (Start::Genesis, EVENTS),
            "{name}"
        );
        assert_eq!(report.root, ROOT.parse::<Digest>().unwrap(), "{name}");
        assert!(report.checkpoints_checked >= 2, "{name}");
        assert_eq!(report.sources.len(), 1, "{name}");
    }
}

#[test]
fn the_proofs_hold() {
    let proof = Proof::parse(&text("proof.txt")).unwrap();
    assert_eq!(proof.check(&key()), Ok(()));
    assert_eq!(proof.event.hash, SECOND_HASH.parse::<Digest>().unwrap());
    assert_eq!(proof.to_string(), text("proof.txt"));
    let growth = GrowthProof::parse(&text("growth.txt")).unwrap();
    assert_eq!(growth.check(&key()), Ok(()));
    assert_eq!(growth.to_string(), text("growth.txt"));
    let notes = parse_checkpoints(&text("checkpoints.txt")).unwrap();
    assert_eq!(
        notes
            .iter()
            .map(|note| note.checkpoint.size)
            .collect::<Vec<_>>(),
        [4, EVENTS]
    );
    assert!(notes.iter().all(|note| note.is_signed_by(&key())));
}

#[test]
fn the_database_is_read_written_and_exported_as_before() {
    let home = tempfile::tempdir().unwrap();
    fs::copy(golden("ledger.db"), home.path().join("ledger.db")).unwrap();
    let ledger = Ledger::open(home.path(), LedgerOptions::default()).unwrap();
    let head = ledger.head().unwrap();
    assert_eq!((head.seq, head.epoch), (EVENTS, 2));
    let event = ledger.read(2, 1).unwrap().remove(0);
    assert_eq!(event.hash, SECOND_HASH.parse::<Digest>().unwrap());
    assert_eq!((event.domain, event.event_version), (Domain::Plugin, 3));
    assert_eq!(
        event.actor,
        Actor::new(ActorKind::Agent, "agent-1").on_behalf_of("alice")
    );
    assert_eq!(event.occurred_at.to_string(), "1969-12-31T23:59:59.999999Z");
    assert_eq!(event.scope.env_id.as_deref(), Some("env"));
    assert_eq!(
        (event.causation_seq, event.decision_seq),
        (Some(1), Some(1))
    );
    assert_eq!(event.payload.value().unwrap()["nested"]["a"], 2);
    let mut bytes = Vec::new();
    let notes = parse_checkpoints(&text("checkpoints.txt")).unwrap();
    let options = ExportOptions {
        compression: Compression::Plain,
        checkpoint: notes.last().cloned(),
    };
    ledger.export(&mut bytes, &options).unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), text("export.jsonl"));
    // And it goes on from there.
    let aggregate = event.aggregate.clone();
    let next = fluffy_ledger::Draft::new(event.domain, aggregate, event.event_type, event.actor);
    assert_eq!(ledger.append_blocking(next).unwrap().first_seq, EVENTS + 1);
    assert!(ledger.verify(&VerifyOptions::default()).unwrap().is_sound());
}
