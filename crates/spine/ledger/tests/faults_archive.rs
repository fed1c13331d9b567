//! Salvage of a ledger that has an archive: what moved out still counts.

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
use std::sync::Arc;
use std::time::Duration;

use faults::{check_chain, operational};
use fluffy_base::{ManualClock, Timestamp};
use fluffy_ledger::archive::segments;
use fluffy_ledger::verify::VerifyOptions;
use fluffy_ledger::{Aggregate, Batch, Domain, Ledger, LedgerOptions, Lost, Retention, Salvage};
use serde_json::json;

const DAY: Duration = Duration::from_secs(86_400);

/// Ten days of events, the finished ones archived, `keep_hot` of them hot.
fn ten_days(home: &Path, keep_hot: Duration) {
    let clock = Arc::new(ManualClock::new(
        "2026-01-01T12:00:00Z".parse::<Timestamp>().unwrap(),
    ));
    let options = LedgerOptions {
        clock: clock.clone(),
        ..LedgerOptions::default()
    };
    let ledger = Ledger::open(home, options).unwrap();
    ledger
        .append_blocking(operational("first-day-only", json!({})))
        .unwrap();
    for day in 0..10 {
        let drafts = (0..200).map(|n| {
            let marker = format!("event-{:05}", day * 200 + n);
            operational(
                "every-day",
                json!({"marker": marker, "text": "x".repeat(300)}),
            )
        });
        ledger
            .append_blocking(Batch::new(drafts.collect()))
            .unwrap();
        clock.advance(DAY);
    }
    let mut retention = Retention::agent(home);
    retention.keep_hot = keep_hot;
    ledger.enforce(&retention).unwrap();
}

fn salvage(home: &Path) -> (Ledger, Salvage) {
    let recovered = Ledger::open_or_salvage(home, LedgerOptions::default()).unwrap();
    (recovered.ledger, recovered.salvage.expect("it is damaged"))
}

fn archives(home: &Path) -> Vec<PathBuf> {
    let found = segments(&home.join("archive")).unwrap();
    found.into_iter().map(|segment| segment.path).collect()
}

#[test]
fn a_pruned_ledger_keeps_its_start_and_its_versions() {
    let home = tempfile::tempdir().unwrap();
    ten_days(home.path(), 7 * DAY);
    let database = home.path().join("ledger.db");
    let mut bytes = fs::read(&database).unwrap();
    let marker = b"event-01500";
    let at = bytes
        .windows(marker.len())
        .position(|window| window == marker)
        .unwrap();
    bytes[at / 4_096 * 4_096..(at / 4_096 + 1) * 4_096].fill(0);
    fs::write(&database, &bytes).unwrap();
    // Without the archive nothing can fill the hole.
    fs::rename(home.path().join("archive"), home.path().join("elsewhere")).unwrap();
    let (ledger, salvage) = salvage(home.path());
    assert!(
        (1_400..1_502).contains(&salvage.kept),
        "kept {}",
        salvage.kept
    );
    assert!(salvage.lost.is_some_and(|lost| lost.last.is_some()));
    fs::rename(home.path().join("elsewhere"), home.path().join("archive")).unwrap();
    let first_hot = ledger.first_hot().unwrap();
    assert!(first_hot > 1, "the pruned part stays pruned");
    let pruned: Vec<_> = archives(home.path()).into_iter().take(3).collect();
    let options = VerifyOptions {
        archives: pruned,
        ..VerifyOptions::default()
    };
    let verification = ledger.verify(&options).unwrap();
    assert_eq!(verification.verdict, Ok(()));
    assert_eq!(
        verification.events,
        ledger.head().unwrap().seq,
        "archive and hot rows are one chain"
    );
    let aggregate = Aggregate::new("session", "first-day-only");
    assert_eq!(ledger.version(Domain::Agent, &aggregate).unwrap(), 1);
}

#[test]
fn the_archive_fills_a_hole() {
    let home = tempfile::tempdir().unwrap();
    ten_days(home.path(), 365 * DAY);
    let database = home.path().join("ledger.db");
    let mut bytes = fs::read(&database).unwrap();
    let marker = b"event-00700";
    let at = bytes
        .windows(marker.len())
        .position(|window| window == marker)
        .unwrap();
    bytes[at / 4_096 * 4_096..(at / 4_096 + 1) * 4_096].fill(0);
    fs::write(&database, &bytes).unwrap();
    let (ledger, salvage) = salvage(home.path());
    assert_eq!(salvage.lost, None, "{salvage:?}");
    assert_eq!(check_chain(&ledger).seq, salvage.kept + 1);
}

#[test]
fn with_only_the_archive_left_the_chain_goes_on_from_it() {
    let home = tempfile::tempdir().unwrap();
    ten_days(home.path(), 7 * DAY);
    fs::write(home.path().join("ledger.db"), "not a database at all").unwrap();
    let (ledger, salvage) = salvage(home.path());
    assert!(!salvage.started_anew);
    assert_eq!(salvage.kept, 2_001, "every finished day was archived");
    assert_eq!(
        salvage.lost,
        Some(Lost {
            first: 2_002,
            last: None
        })
    );
    assert_eq!(check_chain(&ledger).seq, 2_003);
    let aggregate = Aggregate::new("session", "every-day");
    assert_eq!(ledger.version(Domain::Agent, &aggregate).unwrap(), 2_000);
}

#[test]
fn an_archive_that_lost_its_beginning_is_set_aside_with_the_rest() {
    let home = tempfile::tempdir().unwrap();
    ten_days(home.path(), 7 * DAY);
    fs::remove_file(&archives(home.path())[0]).unwrap();
    fs::write(home.path().join("ledger.db"), "not a database at all").unwrap();
    let (ledger, salvage) = salvage(home.path());
    assert!(salvage.started_anew);
    assert_eq!(check_chain(&ledger).seq, 2);
    assert!(
        archives(home.path()).is_empty(),
        "it belongs to the ledger that is gone"
    );
    assert_eq!(segments(&salvage.aside.join("archive")).unwrap().len(), 9);
}
