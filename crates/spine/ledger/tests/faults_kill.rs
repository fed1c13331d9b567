//! Kill -9 at random moments: nothing acknowledged is lost, the chain holds.
//!
//! The test starts itself again as a child with sixteen writers, kills it and
//! looks at what is left. The ledger lives on from round to round.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod faults;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use faults::{
    CHILD_ENV, Checked, Worker, check_after, check_chain, open, operational, patience, security,
    signed,
};
use fluffy_base::Digest;
use fluffy_ledger::Ledger;
use fluffy_ledger::checkpoint::parse_checkpoints;
use fluffy_ledger::health::Health;
use fluffy_ledger::verify::VerifyOptions;
use fluffy_test_kit::{Seed, campaign};
use serde_json::json;

const WRITERS: u64 = 16;

#[test]
fn a_killed_writer_loses_nothing_it_acknowledged() {
    if let Some(home) = std::env::var_os(CHILD_ENV) {
        append_for_ever(Path::new(&home));
    }
    let seed = Seed::from_environment();
    let home = tempfile::tempdir().unwrap();
    let mut checked = check_chain(&open(home.path()));
    let mut acknowledged_in_all = 0;
    for round in 0..campaign(20, 200) {
        let worker = Worker::start("a_killed_writer_loses_nothing_it_acknowledged", home.path());
        let acknowledged = kill_at_some_moment(worker, &seed, round);
        acknowledged_in_all += acknowledged.len();
        checked = survivors_match(home.path(), checked, acknowledged);
    }
    let ledger = open(home.path());
    assert_eq!(check_chain(&ledger), checked);
    let options = VerifyOptions {
        against: vec![checkpoints(home.path())],
        key: ledger.public_key(),
        ..VerifyOptions::default()
    };
    let verification = ledger.verify(&options).unwrap();
    assert_eq!(
        (verification.verdict, verification.last_seq),
        (Ok(()), checked.seq)
    );
    assert!(acknowledged_in_all > 0, "the writers never got to work");
}

/// Sixteen writers; each prints `ack SEQ HASH` before it appends again.
fn append_for_ever(home: &Path) -> ! {
    let ledger = open(home);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let ledger = &ledger;
            scope.spawn(move || {
                let id = format!("writer-{writer}");
                for n in 0u64.. {
                    // Buffered events in between: they may be lost, not torn.
                    let ticket = ledger.record(operational(&id, json!({"n": n}))).unwrap();
                    let draft = security(&id, json!({"n": n})).caused_by(ticket);
                    let appended = ledger.append_blocking(draft).unwrap();
                    let line = format!("ack {} {}\n", appended.last_seq, appended.hash);
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
    unreachable!("the writers only end with the process")
}

/// Waits for a random number of acknowledgements and a random while longer,
/// or only for the while, so that opening is interrupted too.
fn kill_at_some_moment(worker: Worker, seed: &Seed, round: u64) -> BTreeMap<u64, Digest> {
    let choice = |step| seed.choice(round * 3 + step);
    let wanted = match choice(0) % 4 {
        0 => 0,
        _ => choice(1) % 400,
    };
    let mut lines = Vec::new();
    while (lines.len() as u64) < wanted {
        let line = worker.line_until(patience()).expect("the child works");
        lines.extend(acknowledgement(&line));
    }
    let moment = Instant::now() + Duration::from_micros(choice(2) % 30_000);
    while let Some(line) = worker.line_until(moment) {
        lines.extend(acknowledgement(&line));
    }
    let rest = worker.kill();
    lines.extend(rest.iter().filter_map(|line| acknowledgement(line)));
    lines.into_iter().collect()
}

fn acknowledgement(line: &str) -> Option<(u64, Digest)> {
    let (seq, hash) = line.strip_prefix("ack ")?.split_once(' ')?;
    Some((seq.parse().ok()?, hash.parse().ok()?))
}

/// Opens what is left: the old part is as it was, the new part chains on, and
/// every acknowledged event is in it under its hash.
fn survivors_match(
    home: &Path,
    before: Checked,
    mut acknowledged: BTreeMap<u64, Digest>,
) -> Checked {
    // The way every front opens its ledger after a crash.
    let recovered = Ledger::open_or_salvage(&home.join("ledger"), signed(home)).unwrap();
    assert_eq!((recovered.salvage, recovered.health), (None, Health::Sound));
    let ledger = recovered.ledger;
    let mut versions = BTreeMap::new();
    let after = check_after(&ledger, before, |event| {
        if let Some(hash) = acknowledged.remove(&event.seq) {
            assert_eq!(
                event.hash, hash,
                "event {} is not what was acknowledged",
                event.seq
            );
        }
        let last = versions.insert(event.aggregate.id.clone(), event.aggregate_version);
        assert!(last.is_none_or(|last| last + 1 == event.aggregate_version));
    });
    assert!(
        acknowledged.is_empty(),
        "acknowledged but lost: {:?}",
        acknowledged.keys()
    );
    for note in parse_checkpoints(&checkpoints(home)).expect("whole checkpoints") {
        assert!(
            note.checkpoint.size <= after.seq,
            "a checkpoint of events that are gone"
        );
    }
    after
}

fn checkpoints(home: &Path) -> String {
    std::fs::read_to_string(home.join("keys/ledger.checkpoints")).unwrap_or_default()
}
