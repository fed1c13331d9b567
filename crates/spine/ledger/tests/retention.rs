//! Archive and retention: days move out, stay provable, and go unsaid never.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::{ByteSize, ManualClock, Timestamp};
use fluffy_ledger::archive::segments;
use fluffy_ledger::verify::{VerifyOptions, verify_path};
use fluffy_ledger::{
    Actor, Aggregate, Batch, Domain, Draft, Enforced, Ledger, LedgerOptions, Level, Retention,
    RetentionError, Signing,
};
use serde_json::json;

const DAY: Duration = Duration::from_secs(86_400);

/// A signed ledger with a clock of its own.
struct Kept {
    home: tempfile::TempDir,
    clock: Arc<ManualClock>,
    ledger: Ledger,
    retention: Retention,
}

impl Kept {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new(
            "2026-01-01T12:00:00Z".parse::<Timestamp>().unwrap(),
        ));
        let signing = Signing::in_directory(&home.path().join("keys"));
        let mut retention = Retention::agent(&home.path().join("ledger"));
        retention.key = Some(signing.key.clone());
        retention.keep_hot = 7 * DAY;
        let options = LedgerOptions {
            signing: Some(signing),
            clock: clock.clone(),
            ..LedgerOptions::default()
        };
        let ledger = Ledger::open(&home.path().join("ledger"), options).unwrap();
        Self {
            home,
            clock,
            ledger,
            retention,
        }
    }

    fn write(&self, count: usize) {
        let text = "x".repeat(200);
        let drafts = (0..count).map(|n| {
            let aggregate = Aggregate::new("session", format!("s{}", n % 3));
            Draft::new(
                Domain::Agent,
                aggregate,
                "tool.execute",
                Actor::system("test"),
            )
            .payload(json!({"n": n, "text": text}))
        });
        self.ledger
            .append_blocking(Batch::new(drafts.collect()))
            .unwrap();
    }

    /// One day after the other, with events on each.
    fn live(&self, days: u32) {
        for _ in 0..days {
            self.write(100);
            self.clock.advance(DAY);
        }
    }

    fn enforce(&self) -> Enforced {
        self.ledger.enforce(&self.retention).unwrap()
    }

    fn archives(&self) -> Vec<PathBuf> {
        let found = segments(&self.retention.archive).unwrap();
        found.into_iter().map(|segment| segment.path).collect()
    }

    fn said(&self, event_type: &str) -> usize {
        let mut found = 0;
        let mut next = self.ledger.first_hot().unwrap();
        loop {
            let events = self.ledger.read(next, 1_000).unwrap();
            let Some(last) = events.last() else {
                return found;
            };
            next = last.seq + 1;
            found += events
                .iter()
                .filter(|event| event.event_type == event_type)
                .count();
        }
    }

    fn verify(&self, archives: Vec<PathBuf>) -> fluffy_ledger::verify::Verification {
        let notes = std::fs::read_to_string(self.home.path().join("keys/ledger.checkpoints"));
        let options = VerifyOptions {
            against: vec![notes.unwrap_or_default()],
            key: self.ledger.public_key(),
            archives,
            ..VerifyOptions::default()
        };
        self.ledger.verify(&options).unwrap()
    }
}

#[test]
fn history_goes_back_into_the_archive() {
    let kept = Kept::new();
    kept.live(10);
    let aggregate = Aggregate::new("session", "s1");
    let versions = || -> Vec<u64> {
        let events = kept.ledger.history(Domain::Agent, &aggregate).unwrap();
        events.iter().map(|event| event.aggregate_version).collect()
    };
    let everything = || {
        let found = kept.ledger.everywhere(|event| event.aggregate == aggregate);
        found.unwrap().len()
    };
    let whole = versions();
    assert_eq!(whole.len(), 330);
    kept.enforce();
    let hot = kept
        .ledger
        .read_aggregate(Domain::Agent, &aggregate, 0, 1_000)
        .unwrap();
    assert!(hot.len() < whole.len(), "nothing was archived");
    assert_eq!(versions(), whole);
    assert_eq!(everything(), whole.len());
    // Where the oldest is deleted, the rest still says what it is.
    std::fs::remove_file(kept.archives().first().unwrap()).unwrap();
    let left = versions();
    assert_eq!(left, whole[whole.len() - left.len()..]);
    assert!(left[0] > 1);
    let unknown = Aggregate::new("session", "nobody");
    let none = kept.ledger.history(Domain::Agent, &unknown).unwrap();
    assert!(none.is_empty());
}

#[test]
fn every_finished_day_becomes_a_segment_that_verifies() {
    let kept = Kept::new();
    kept.live(3);
    kept.write(10);
    let done = kept.enforce();
    let days: Vec<&str> = done
        .sealed
        .iter()
        .map(|segment| segment.day.as_str())
        .collect();
    assert_eq!(days, ["2026-01-01", "2026-01-02", "2026-01-03"]);
    assert_eq!(
        (done.sealed[0].first_seq, done.sealed[0].last_seq),
        (1, 100)
    );
    assert_eq!((done.pruned_to, done.level), (None, Level::Normal));
    assert_eq!(kept.said("ledger.segment_sealed"), 3);
    for path in kept.archives() {
        let options = VerifyOptions {
            key: kept.ledger.public_key(),
            ..VerifyOptions::default()
        };
        assert_eq!(verify_path(&path, &options).unwrap().verdict, Ok(()));
    }
    assert_eq!(kept.enforce().sealed, [], "nothing is sealed twice");
}

#[test]
fn old_days_leave_the_database_and_stay_provable() {
    let kept = Kept::new();
    kept.live(10);
    let before = kept.ledger.read(1, 1).unwrap().remove(0);
    let done = kept.enforce();
    // Day 11 now: what is older than a week goes.
    assert_eq!(done.pruned_to, Some(300));
    assert_eq!(kept.ledger.first_hot().unwrap(), 301);
    assert_eq!(kept.said("ledger.segment_pruned"), 3);
    let whole = kept.verify(kept.archives());
    assert_eq!(whole.verdict, Ok(()));
    assert_eq!(whole.last_seq, kept.ledger.head().unwrap().seq);
    let hot = kept.verify(Vec::new());
    assert_eq!(
        hot.verdict,
        Ok(()),
        "without the archive it starts at the anchor"
    );
    assert!(hot.events < whole.events);
    let mut reader = fluffy_ledger::export::ExportReader::open(&kept.archives()[0]).unwrap();
    assert_eq!(reader.next_event().unwrap().unwrap(), before);
    kept.write(5);
    assert_eq!(kept.verify(kept.archives()).verdict, Ok(()));
    let session = Aggregate::new("session", "s0");
    let version = kept.ledger.version(Domain::Agent, &session).unwrap();
    assert_eq!(version, 10 * 34 + 2, "versions go on over the pruned part");
}

#[test]
fn nothing_is_pruned_that_the_archive_does_not_hold() {
    let kept = Kept::new();
    kept.live(10);
    let mut later = kept.retention.clone();
    later.keep_hot = 365 * DAY;
    kept.ledger.enforce(&later).unwrap();
    let victim = kept.archives().remove(1);
    let mut bytes = std::fs::read(&victim).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&victim, &bytes).unwrap();
    let error = kept.ledger.enforce(&kept.retention).unwrap_err();
    assert!(matches!(error, RetentionError::Segment(_)), "{error:?}");
    assert_eq!(
        kept.ledger.first_hot().unwrap(),
        101,
        "only the whole segment before it went"
    );
    assert_eq!(kept.verify(Vec::new()).verdict, Ok(()));
    std::fs::remove_file(&victim).unwrap();
    let done = kept.enforce();
    assert!(
        done.sealed.iter().any(|segment| segment.path == victim),
        "it is written again"
    );
    assert_eq!(done.pruned_to, Some(300));
    assert_eq!(kept.verify(kept.archives()).verdict, Ok(()));
}

#[test]
fn a_segment_of_another_ledger_prunes_nothing() {
    let (kept, other) = (Kept::new(), Kept::new());
    kept.live(10);
    other.live(10);
    other
        .ledger
        .enforce(&Retention {
            keep_hot: 365 * DAY,
            ..other.retention.clone()
        })
        .unwrap();
    std::fs::create_dir(&kept.retention.archive).unwrap();
    let foreign = other.archives().remove(0);
    std::fs::copy(
        &foreign,
        kept.retention.archive.join(foreign.file_name().unwrap()),
    )
    .unwrap();
    let error = kept.ledger.enforce(&kept.retention).unwrap_err();
    assert!(
        matches!(
            error,
            RetentionError::Foreign { .. } | RetentionError::Segment(_)
        ),
        "{error:?}"
    );
    assert_eq!(kept.ledger.first_hot().unwrap(), 1);
}

#[test]
fn what_is_held_stays() {
    let mut kept = Kept::new();
    kept.live(10);
    kept.retention.hold_from = Some(150);
    assert_eq!(kept.enforce().pruned_to, Some(100));
    kept.retention.keep = DAY;
    let deleted = kept.enforce().deleted;
    assert_eq!(deleted.len(), 1, "only the segment before the hold");
}

#[test]
fn archives_go_by_age_and_that_is_said() {
    let kept = Kept::new();
    kept.live(5);
    kept.enforce();
    kept.clock.advance(88 * DAY);
    let done = kept.enforce();
    let days: Vec<&str> = done
        .deleted
        .iter()
        .map(|segment| segment.day.as_str())
        .collect();
    assert_eq!(days, ["2026-01-01", "2026-01-02", "2026-01-03"]);
    assert_eq!(kept.said("ledger.archive_deleted"), 3);
    assert_eq!(kept.verify(Vec::new()).verdict, Ok(()));
    assert!(done.deleted.iter().all(|segment| !segment.path.exists()));
}

#[test]
fn each_crossing_of_a_threshold_is_said_once() {
    let mut kept = Kept::new();
    kept.write(2_000);
    let used = kept.enforce().used.0;
    let percent = |share: u64| ByteSize(used * 100 / share);
    for (share, level, warnings, criticals) in [
        (50, Level::Normal, 0, 0),
        (85, Level::Warning, 1, 0),
        (85, Level::Warning, 1, 0),
        (97, Level::Critical, 1, 1),
        (97, Level::Critical, 1, 1),
        (50, Level::Normal, 1, 1),
        (86, Level::Warning, 2, 1),
    ] {
        kept.retention.budget = percent(share);
        assert_eq!(kept.enforce().level, level, "{share}%");
        let said = (
            kept.said("ledger.storage_warning"),
            kept.said("ledger.storage_critical"),
        );
        assert_eq!(said, (warnings, criticals), "{share}%");
    }
    assert_eq!(kept.said("ledger.storage_normal"), 1);
}

#[test]
fn a_full_budget_moves_days_out_early_then_drops_the_oldest_archive() {
    let mut kept = Kept::new();
    kept.live(6);
    kept.retention.budget = ByteSize(1);
    let done = kept.enforce();
    assert_eq!(done.sealed.len(), 6);
    assert!(
        done.pruned_to >= Some(600),
        "no day stays for its full week"
    );
    assert_eq!(done.level, Level::Critical);
    assert_eq!(done.deleted.len(), 6, "even so there is too much");
    assert_eq!(kept.said("ledger.archive_deleted"), 6);
    assert_eq!(kept.verify(Vec::new()).verdict, Ok(()));
    kept.write(3);
}

#[test]
fn a_clock_set_back_makes_no_segment_twice() {
    let kept = Kept::new();
    kept.live(2);
    kept.clock.set("2025-06-01T00:00:00Z".parse().unwrap());
    kept.write(10);
    kept.clock.set("2026-01-05T00:00:00Z".parse().unwrap());
    kept.write(10);
    let done = kept.enforce();
    let ranges: Vec<(u64, u64)> = done
        .sealed
        .iter()
        .map(|s| (s.first_seq, s.last_seq))
        .collect();
    assert_eq!(ranges, [(1, 100), (101, 210)]);
    assert_eq!(kept.verify(kept.archives()).verdict, Ok(()));
}

#[test]
fn large_days_are_split() {
    let mut kept = Kept::new();
    kept.retention.segment_events = 40;
    kept.live(1);
    let done = kept.enforce();
    let ranges: Vec<(u64, u64)> = done
        .sealed
        .iter()
        .map(|s| (s.first_seq, s.last_seq))
        .collect();
    assert_eq!(ranges, [(1, 40), (41, 80), (81, 100)]);
}

#[cfg(unix)]
#[test]
fn segments_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let kept = Kept::new();
    kept.live(1);
    kept.enforce();
    assert_eq!(mode(&kept.retention.archive), 0o700);
    assert_eq!(mode(&kept.archives()[0]), 0o600);
}
