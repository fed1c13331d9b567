//! Torn pages: what is readable is kept, what is lost is stated, nothing hides.
//!
//! Each round damages a copy of the same ledger in another way. What comes out
//! is compared with what went in, event by event.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod faults;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use faults::{CHILD_ENV, Worker, check_chain, operational, try_check};
use fluffy_ledger::export::parse_line;
use fluffy_ledger::verify::VerifyOptions;
use fluffy_ledger::{Batch, Event, Ledger, LedgerOptions, Lost, Salvage, SalvageError};
use fluffy_test_kit::{Seed, campaign};
use serde_json::json;

const PAGE: usize = 4_096;
const EVENTS: u64 = 3_000;

/// A ledger on disk, and the events it holds.
struct Sample {
    home: tempfile::TempDir,
    events: Vec<Event>,
}

impl Sample {
    /// `EVENTS` events, with a snapshot after `snapshot_at` if that is not 0.
    fn new(snapshot_at: u64) -> Self {
        let home = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(home.path(), LedgerOptions::default()).unwrap();
        for first in (0..EVENTS).step_by(500) {
            if first > 0 && first == snapshot_at {
                ledger.snapshot().unwrap();
            }
            let drafts = (first..first + 500).map(|n| {
                let id = format!("session-{}", n % 7);
                operational(
                    &id,
                    json!({"marker": format!("event-{:05}", n + 1), "text": "x".repeat(300)}),
                )
            });
            ledger
                .append_blocking(Batch::new(drafts.collect()).durable())
                .unwrap();
        }
        let mut events: Vec<Event> = Vec::new();
        while (events.len() as u64) < EVENTS {
            events.extend(ledger.read(events.len() as u64 + 1, 1_000).unwrap());
        }
        drop(ledger);
        assert!(
            !home.path().join("ledger.db-wal").exists(),
            "all is in one file"
        );
        Self { home, events }
    }

    fn database(&self) -> PathBuf {
        self.home.path().join("ledger.db")
    }

    /// A copy of the database alone, damaged.
    fn damaged(&self, damage: impl FnOnce(&mut Vec<u8>)) -> (tempfile::TempDir, Vec<u8>) {
        let copy = tempfile::tempdir().unwrap();
        let mut bytes = fs::read(self.database()).unwrap();
        damage(&mut bytes);
        fs::write(copy.path().join("ledger.db"), &bytes).unwrap();
        (copy, bytes)
    }

    /// The page that holds the row of an event.
    fn page_of(&self, seq: u64) -> usize {
        let bytes = fs::read(self.database()).unwrap();
        let marker = format!("event-{seq:05}");
        let found = bytes
            .windows(marker.len())
            .position(|window| window == marker.as_bytes());
        found.expect("the marker is in the file") / PAGE
    }
}

fn zero(bytes: &mut [u8], page: usize) {
    bytes[page * PAGE..(page + 1) * PAGE].fill(0);
}

fn salvage(directory: &Path) -> (Ledger, Option<Salvage>) {
    let recovered = Ledger::open_or_salvage(directory, LedgerOptions::default()).unwrap();
    (recovered.ledger, recovered.salvage)
}

/// What must hold after any salvage of the sample.
fn invariant_nothing_hides(sample: &Sample, directory: &Path, ledger: &Ledger, salvage: &Salvage) {
    let end = check_chain(ledger);
    let kept = usize::try_from(salvage.kept).unwrap();
    let stored = read_all(ledger);
    assert_eq!(
        stored[..kept],
        sample.events[..kept],
        "the kept part is unchanged"
    );
    let said: Vec<_> = stored[kept..]
        .iter()
        .map(|event| event.event_type.as_str())
        .collect();
    match salvage.lost {
        None => assert_eq!(said, ["ledger.restored"]),
        Some(lost) => {
            assert_eq!(said, ["ledger.chain_break", "ledger.restored"]);
            assert_eq!(lost.first, salvage.kept + 1);
            let payload = stored[kept].payload.value().unwrap();
            assert_eq!(payload["lost_first"], json!(lost.first));
            assert_eq!(payload["lost_last"], json!(lost.last));
        }
    }
    assert!(
        salvage.lost.is_some() || salvage.kept == EVENTS,
        "a loss is stated"
    );
    assert_eq!(
        ledger.head().unwrap().epoch,
        2,
        "positions belong to a new epoch"
    );
    let rescued = salvage
        .rescued_file
        .as_ref()
        .map(|path| fs::read_to_string(path).unwrap());
    let whole = rescued
        .iter()
        .flat_map(|text| text.lines())
        .filter(|line| !is_damaged(line));
    let rescued: Vec<Event> = whole.map(|line| parse_line(line).unwrap()).collect();
    assert_eq!(rescued.len() as u64, salvage.rescued);
    for event in &rescued {
        assert!(event.seq > salvage.kept);
    }
    let appended = ledger
        .append_blocking(operational("after", json!({})))
        .unwrap();
    assert_eq!(appended.first_seq, end.seq + 1);
    assert!(!directory.join("rebuilding").exists());
    assert!(salvage.aside.exists());
}

/// Whether a line holds what is left of a row that was hit itself.
fn is_damaged(line: &str) -> bool {
    let value: serde_json::Value = serde_json::from_str(line).unwrap();
    value["damaged"].is_string()
}

fn read_all(ledger: &Ledger) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    loop {
        let more = ledger.read(events.len() as u64 + 1, 1_000).unwrap();
        if more.is_empty() {
            return events;
        }
        events.extend(more);
    }
}

#[test]
fn any_torn_page_is_survived_and_stated() {
    let seed = Seed::from_environment();
    let sample = Sample::new(0);
    let mut salvaged = 0;
    for round in 0..campaign(20, 200) {
        let choice = |step| usize::try_from(seed.choice(round * 100 + step) >> 1).unwrap();
        let (copy, bytes) = sample.damaged(|bytes| {
            let page = choice(0) % (bytes.len() / PAGE);
            let start = page * PAGE;
            match choice(1) % 4 {
                0 => zero(bytes, page),
                1 => bytes.truncate(start + choice(2) % PAGE),
                2 => {
                    // Half of the page never reached the disk.
                    let other = choice(2) % (bytes.len() / PAGE) * PAGE;
                    bytes.copy_within(other..other + PAGE / 2, start);
                }
                _ => {
                    for flip in 0..16 {
                        bytes[start + choice(3 + flip) % PAGE] ^= 1 << (choice(30 + flip) % 8);
                    }
                }
            }
        });
        let (ledger, salvage) = salvage(copy.path());
        match salvage {
            Some(salvage) if salvage.started_anew => assert_eq!(salvage.kept, 0),
            Some(salvage) => {
                salvaged += 1;
                invariant_nothing_hides(&sample, copy.path(), &ledger, &salvage);
                assert!(
                    fs::read(salvage.aside.join("ledger.db")).unwrap() == bytes,
                    "evidence is unchanged"
                );
            }
            // The damage left a well-formed database: then either it touched
            // no event, or the hashes tell.
            None => match try_check(&ledger) {
                Ok(end) => assert_eq!(
                    (end.seq, end.hash),
                    (EVENTS, sample.events.last().unwrap().hash)
                ),
                Err(_) => {
                    assert_eq!(ledger.id(), sample_id(&sample));
                    let verification = ledger.verify(&VerifyOptions::default()).unwrap();
                    assert!(
                        !verification.is_sound(),
                        "verification sees what a re-hash sees"
                    );
                }
            },
        }
    }
    assert!(salvaged > 0, "no round needed a salvage");
}

fn sample_id(sample: &Sample) -> fluffy_base::id::LedgerId {
    Ledger::open(sample.home.path(), LedgerOptions::default())
        .unwrap()
        .id()
}

#[test]
fn a_lost_page_costs_its_rows_and_what_lies_behind_is_rescued() {
    let sample = Sample::new(0);
    let page = sample.page_of(1_500);
    let (copy, _) = sample.damaged(|bytes| zero(bytes, page));
    let (ledger, salvage) = salvage(copy.path());
    let salvage = salvage.expect("a page is gone");
    invariant_nothing_hides(&sample, copy.path(), &ledger, &salvage);
    assert!(
        (1_400..1_500).contains(&salvage.kept),
        "kept {}",
        salvage.kept
    );
    assert_eq!(
        salvage.lost,
        Some(Lost {
            first: salvage.kept + 1,
            last: Some(EVENTS)
        })
    );
    assert!(salvage.rescued > 1_400, "rescued {}", salvage.rescued);
    assert!(!salvage.started_anew);
}

#[test]
fn a_snapshot_fills_the_hole() {
    let sample = Sample::new(2_000);
    let page = sample.page_of(1_500);
    let (copy, _) = sample.damaged(|bytes| zero(bytes, page));
    copy_directory(
        &sample.home.path().join("snapshots"),
        &copy.path().join("snapshots"),
    );
    let (ledger, salvage) = salvage(copy.path());
    let salvage = salvage.expect("a page is gone");
    invariant_nothing_hides(&sample, copy.path(), &ledger, &salvage);
    assert_eq!((salvage.kept, salvage.lost), (EVENTS, None));
}

#[test]
fn without_a_readable_database_the_newest_snapshot_is_taken() {
    let sample = Sample::new(2_000);
    let (copy, _) = sample.damaged(|bytes| zero(bytes, 0));
    copy_directory(
        &sample.home.path().join("snapshots"),
        &copy.path().join("snapshots"),
    );
    let (ledger, salvage) = salvage(copy.path());
    let salvage = salvage.expect("the header is gone");
    invariant_nothing_hides(&sample, copy.path(), &ledger, &salvage);
    assert_eq!(salvage.kept, 2_000);
    assert_eq!(
        salvage.lost,
        Some(Lost {
            first: 2_001,
            last: None
        })
    );
    assert_eq!(ledger.id(), sample_id(&sample));
}

#[test]
fn with_nothing_left_a_new_ledger_says_so() {
    let sample = Sample::new(0);
    let (copy, bytes) = sample.damaged(|bytes| bytes.fill(0xa5));
    let (ledger, salvage) = salvage(copy.path());
    let salvage = salvage.expect("nothing is readable");
    assert!(salvage.started_anew);
    assert_eq!(
        salvage.lost,
        Some(Lost {
            first: 1,
            last: None
        })
    );
    assert_ne!(ledger.id(), sample_id(&sample));
    let types: Vec<_> = read_all(&ledger)
        .into_iter()
        .map(|event| event.event_type)
        .collect();
    assert_eq!(types, ["ledger.chain_break", "ledger.restored"]);
    assert!(fs::read(salvage.aside.join("ledger.db")).unwrap() == bytes);
}

#[test]
fn a_lost_database_is_never_replaced_in_silence() {
    let sample = Sample::new(2_000);
    let copy = tempfile::tempdir().unwrap();
    copy_directory(
        &sample.home.path().join("snapshots"),
        &copy.path().join("snapshots"),
    );
    Ledger::open(copy.path(), LedgerOptions::default()).expect_err("the snapshots tell");
    let (ledger, salvage) = salvage(copy.path());
    assert_eq!(salvage.expect("the database is gone").kept, 2_000);
    check_chain(&ledger);
}

#[test]
fn an_interrupted_salvage_is_taken_up_again() {
    let sample = Sample::new(0);
    let page = sample.page_of(1_500);
    let (copy, _) = sample.damaged(|bytes| zero(bytes, page));
    let part = copy.path().join("damaged-2026-01-01T00-00-00.000000Z.part");
    fs::create_dir(&part).unwrap();
    fs::rename(copy.path().join("ledger.db"), part.join("ledger.db")).unwrap();
    fs::create_dir(copy.path().join("rebuilding")).unwrap();
    fs::write(copy.path().join("rebuilding/ledger.db"), "half").unwrap();
    Ledger::open(copy.path(), LedgerOptions::default()).expect_err("the part tells");
    let (ledger, salvage) = salvage(copy.path());
    let salvage = salvage.expect("it was interrupted");
    invariant_nothing_hides(&sample, copy.path(), &ledger, &salvage);
    assert!(salvage.kept > 1_400);
    assert!(!part.exists(), "it has its final name");
}

#[test]
fn a_salvage_killed_at_any_moment_is_taken_up_again() {
    const NAME: &str = "a_salvage_killed_at_any_moment_is_taken_up_again";
    if let Some(home) = std::env::var_os(CHILD_ENV) {
        salvage(Path::new(&home));
        return;
    }
    let seed = Seed::from_environment();
    let sample = Sample::new(0);
    let page = sample.page_of(1_500);
    let mut taken_up = 0;
    for round in 0..campaign(10, 100) {
        let (copy, bytes) = sample.damaged(|bytes| zero(bytes, page));
        let worker = Worker::start(NAME, copy.path());
        let moment = Instant::now() + Duration::from_micros(seed.choice(round) % 300_000);
        while worker.line_until(moment).is_some() {}
        worker.kill();
        let (ledger, salvage) = salvage(copy.path());
        taken_up += u32::from(salvage.is_some());
        check_chain(&ledger);
        let events = read_all(&ledger);
        let restored = events
            .iter()
            .filter(|event| event.event_type == "ledger.restored");
        assert_eq!(restored.count(), 1, "it happened once");
        let kept = events.len() - 2;
        assert!(kept > 1_400 && events[..kept] == sample.events[..kept]);
        let aside = fs::read_dir(copy.path())
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let aside: Vec<PathBuf> = aside.filter(|path| is_aside(path)).collect();
        assert_eq!(aside.len(), 1);
        assert!(
            fs::read(aside[0].join("ledger.db")).unwrap() == bytes,
            "evidence is unchanged"
        );
    }
    assert!(taken_up > 0, "every child was done before it was killed");
}

fn is_aside(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_str().unwrap();
    name.starts_with("damaged-") && !name.ends_with(".part")
}

#[test]
fn nobody_salvages_what_another_has_open() {
    let sample = Sample::new(0);
    let (copy, _) = sample.damaged(|_| {});
    let ledger = Ledger::open(copy.path(), LedgerOptions::default()).unwrap();
    let page = sample.page_of(1_500);
    let mut bytes = fs::read(copy.path().join("ledger.db")).unwrap();
    zero(&mut bytes, page);
    fs::write(copy.path().join("ledger.db"), &bytes).unwrap();
    let refused = Ledger::open_or_salvage(copy.path(), LedgerOptions::default()).unwrap_err();
    assert!(matches!(refused, SalvageError::InUse { .. }), "{refused:?}");
    drop(ledger);
    let (_ledger, salvage) = salvage(copy.path());
    assert!(salvage.is_some());
}

#[test]
fn a_sound_ledger_is_only_opened() {
    let sample = Sample::new(2_000);
    let (ledger, salvage) = salvage(sample.home.path());
    assert_eq!(salvage, None);
    assert_eq!(check_chain(&ledger).seq, EVENTS);
    assert_eq!(ledger.head().unwrap().epoch, 1);
}

#[test]
fn only_the_newest_five_snapshots_stay() {
    let home = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(home.path(), LedgerOptions::default()).unwrap();
    let mut taken = Vec::new();
    for n in 0..7 {
        ledger
            .append_blocking(operational("s", json!({"n": n})))
            .unwrap();
        taken.push(ledger.snapshot().unwrap());
    }
    assert_eq!(ledger.snapshot().unwrap(), taken[6], "the same state again");
    let there: Vec<bool> = taken.iter().map(|path| path.exists()).collect();
    assert_eq!(there, [false, false, true, true, true, true, true]);
    let copy = tempfile::tempdir().unwrap();
    fs::copy(&taken[6], copy.path().join("ledger.db")).unwrap();
    let (snapshot, _) = salvage(copy.path());
    assert_eq!(check_chain(&snapshot), check_chain(&ledger));
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
