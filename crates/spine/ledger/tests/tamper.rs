//! Attacks on a ledger's files, each of which verification has to name.
//!
//! Every attack starts from a copy of one honest ledger; the first test is the
//! control that this very ledger verifies.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod evidence;

use std::fs;
use std::sync::LazyLock;

use evidence::{SIZES, Site, contents, found};
use fluffy_ledger::verify::{
    Extent, FindingKind, Start, Trust, VerifyError, VerifyOptions, verify_path,
};
use rusqlite::types::Value;

static HONEST: LazyLock<Site> = LazyLock::new(Site::new);

fn after(sql: &str) -> Option<(u64, FindingKind)> {
    let site = HONEST.copy();
    site.attack(sql);
    found(&site.verify())
}

#[test]
fn the_honest_ledger_verifies() {
    let report = HONEST.verify();
    assert_eq!(report.verdict, Ok(()));
    assert_eq!(
        (report.events, report.last_seq, report.start),
        (400, 400, Start::Genesis)
    );
    assert_eq!(
        (report.checkpoints_checked, report.trust),
        (3, Trust::Pinned)
    );
    assert_eq!(HONEST.verify_alone().trust, Trust::Unpinned);
    // Dropping the triggers is what every attack starts with; it hides nothing.
    assert_eq!(after("SELECT 1"), None);
}

#[test]
fn a_changed_value_in_any_column_is_named() {
    // Event 57 has every field, event 58 none that may be left out.
    for seq in [57u64, 58] {
        let site = HONEST.copy();
        let attacker = site.attacker();
        let columns: Vec<String> = attacker
            .prepare("SELECT name FROM pragma_table_info('events')")
            .unwrap()
            .query_map([], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(columns.len(), 22);
        for column in columns.iter().filter(|column| *column != "seq") {
            let select = format!("SELECT {column} FROM events WHERE seq = {seq}");
            let update = format!("UPDATE events SET {column} = ?1 WHERE seq = {seq}");
            let honest: Value = attacker.query_row(&select, [], |row| row.get(0)).unwrap();
            for forged in forgeries(&honest) {
                attacker.execute(&update, [&forged]).unwrap();
                let (bad, kind) = found(&site.verify_alone())
                    .unwrap_or_else(|| panic!("{column} {honest:?} as {forged:?} goes unseen"));
                assert_eq!(bad, seq, "{column} {honest:?} as {forged:?}: {kind}");
                attacker.execute(&update, [&honest]).unwrap();
            }
            assert_eq!(found(&site.verify_alone()), None, "{column} was put back");
        }
    }
}

/// Values that differ from the honest one in as little as possible.
fn forgeries(honest: &Value) -> Vec<Value> {
    match honest {
        Value::Null => vec![],
        Value::Integer(number) => vec![Value::Integer(number + 1), Value::Integer(-1)],
        Value::Real(_) => panic!("no column holds fractions"),
        Value::Text(text) => {
            let mut flipped = text.clone().into_bytes();
            flipped[0] ^= 1;
            vec![
                Value::Text(String::from_utf8(flipped).unwrap()),
                Value::Text(format!("{text} ")),
                Value::Text(String::new()),
            ]
        }
        Value::Blob(bytes) => [0, 15, 31]
            .iter()
            .map(|at| {
                let mut flipped = bytes.clone();
                flipped[*at] ^= 0x80;
                Value::Blob(flipped)
            })
            .chain([Value::Blob(bytes[1..].to_vec()), Value::Blob(Vec::new())])
            .collect(),
    }
}

#[test]
fn absent_and_empty_are_told_apart() {
    for column in [
        "actor_on_behalf_of",
        "org_id",
        "app_id",
        "env_id",
        "idempotency_key",
        "correlation_id",
    ] {
        let filled = format!("UPDATE events SET {column} = '' WHERE seq = 58");
        assert_eq!(
            after(&filled),
            Some((58, FindingKind::HashMismatch)),
            "{column}"
        );
        let emptied = format!("UPDATE events SET {column} = NULL WHERE seq = 57");
        assert_eq!(
            after(&emptied),
            Some((57, FindingKind::HashMismatch)),
            "{column}"
        );
    }
    for column in ["causation_seq", "decision_seq"] {
        let filled = format!("UPDATE events SET {column} = 0 WHERE seq = 58");
        assert_eq!(
            after(&filled),
            Some((58, FindingKind::HashMismatch)),
            "{column}"
        );
    }
}

#[test]
fn events_that_are_moved_removed_or_added_are_named() {
    use FindingKind::{Gap, HashMismatch, Truncated, WrongPrev};
    for (sql, expected) in [
        ("DELETE FROM events WHERE seq = 57", (57, Gap)),
        ("DELETE FROM events WHERE seq = 1", (1, Gap)),
        ("DELETE FROM events WHERE seq = 400", (400, Truncated)),
        ("DELETE FROM events WHERE seq > 300", (301, Truncated)),
        ("DELETE FROM events", (1, Truncated)),
        ("UPDATE events SET seq = 1057 WHERE seq = 57", (57, Gap)),
        ("UPDATE events SET seq = -57 WHERE seq = 57", (57, Gap)),
        (
            "UPDATE events SET seq = 9999 WHERE seq = 57; \
             UPDATE events SET seq = 57 WHERE seq = 58; \
             UPDATE events SET seq = 58 WHERE seq = 9999",
            (57, WrongPrev),
        ),
        (
            "CREATE TEMP TABLE a AS SELECT payload FROM events WHERE seq = 57; \
             UPDATE events SET payload = (SELECT payload FROM events WHERE seq = 59) WHERE seq = 57; \
             UPDATE events SET payload = (SELECT payload FROM a) WHERE seq = 59",
            (57, HashMismatch),
        ),
        (
            "CREATE TEMP TABLE a AS SELECT * FROM events WHERE seq = 400; \
             UPDATE a SET seq = 401, aggregate_version = aggregate_version + 1; \
             INSERT INTO events SELECT * FROM a",
            (401, WrongPrev),
        ),
    ] {
        assert_eq!(after(sql), Some(expected), "{sql}");
    }
}

#[test]
fn a_forged_event_with_a_right_hash_is_still_one_too_many() {
    let forger = HONEST.copy();
    forger.grow(401, 401, "forged");
    let site = HONEST.copy();
    site.attack(&format!(
        "ATTACH '{}' AS forged; INSERT INTO main.events SELECT * FROM forged.events WHERE seq = 401;",
        forger.database().display()
    ));
    assert_eq!(
        found(&site.verify()),
        Some((401, FindingKind::HeadMismatch))
    );
}

#[test]
fn a_ledger_put_back_to_an_earlier_day_is_named_by_a_checkpoint() {
    let early = Site::empty();
    early.grow(1, 150, "honest");
    let later = early.copy();
    later.grow(151, 300, "honest");
    // Without a witness an early copy is as good as any ledger.
    assert_eq!(found(&early.verify()), None);
    let report = verify_path(&early.ledger(), &later.witnessed()).unwrap();
    assert_eq!(found(&report), Some((151, FindingKind::Truncated)));
}

#[test]
fn a_chain_that_was_rewritten_as_a_whole_is_named_by_a_checkpoint() {
    let early = Site::empty();
    early.grow(1, 150, "honest");
    let honest = early.copy();
    honest.grow(151, 300, "honest");
    honest.grow(301, 400, "honest");
    let forged = early.copy();
    forged.grow(151, 400, "forged");
    // The attacker even has the key; what was given away can't be unsaid.
    assert_eq!(found(&forged.verify()), None);
    let report = verify_path(&forged.ledger(), &honest.witnessed()).unwrap();
    assert_eq!(found(&report), Some((151, FindingKind::Rewritten)));
    let report = forged.open().verify(&honest.witnessed()).unwrap();
    assert_eq!(found(&report), Some((151, FindingKind::Rewritten)));
    // A witness that saw only the last checkpoint can't say where.
    let mut last = honest.witnessed();
    let notes = fluffy_ledger::checkpoint::parse_checkpoints(&last.against[0]).unwrap();
    last.against = vec![notes.last().unwrap().to_string()];
    let report = verify_path(&forged.ledger(), &last).unwrap();
    assert_eq!(found(&report), Some((1, FindingKind::Rewritten)));
}

#[test]
fn a_head_row_that_does_not_fit_is_named() {
    use FindingKind::{HeadMismatch, Truncated};
    for (sql, expected) in [
        (
            "UPDATE ledger_head SET hash = zeroblob(32)",
            (400, HeadMismatch),
        ),
        ("UPDATE ledger_head SET epoch = 2", (400, HeadMismatch)),
        (
            "UPDATE ledger_head SET frontier = zeroblob(96)",
            (400, HeadMismatch),
        ),
        (
            "UPDATE ledger_head SET frontier = x'00'",
            (400, HeadMismatch),
        ),
        // As many bits as 400, or the frontier would give it away.
        ("UPDATE ledger_head SET seq = 416", (401, Truncated)),
        ("UPDATE ledger_head SET seq = 401", (400, HeadMismatch)),
        ("UPDATE ledger_head SET seq = -1", (400, HeadMismatch)),
        ("DELETE FROM ledger_head", (400, HeadMismatch)),
        ("UPDATE ledger_head SET pruned_seq = 10", (1, HeadMismatch)),
    ] {
        assert_eq!(after(sql), Some(expected), "{sql}");
    }
}

#[test]
fn a_start_that_was_never_archived_is_named() {
    // The attacker prunes by the book, but signs nothing.
    let site = HONEST.copy();
    let end: Vec<u8> = site
        .attacker()
        .query_row("SELECT hash FROM events WHERE seq = 1", [], |row| {
            row.get(0)
        })
        .unwrap();
    let leaf = fluffy_ledger::tree::leaf(&fluffy_base::Digest(end.clone().try_into().unwrap()));
    site.attacker()
        .execute(
            "UPDATE ledger_head SET pruned_seq = 1, pruned_hash = ?1, pruned_epoch = 1, \
             pruned_frontier = ?2, pruned_note = ''",
            rusqlite::params![end, leaf.as_bytes()],
        )
        .unwrap();
    // The event is still there, before the stated start.
    assert_eq!(found(&site.verify()), Some((1, FindingKind::Duplicate)));
    site.attack("DELETE FROM events WHERE seq = 1");
    let report = site.verify();
    assert_eq!(report.verdict, Ok(()));
    assert_eq!(
        report.start,
        Start::Archived {
            seq: 1,
            signed: false
        }
    );
}

#[test]
fn bookkeeping_that_was_changed_is_named() {
    use FindingKind::{TreeMismatch, VersionMismatch};
    for (sql, expected) in [
        (
            "UPDATE tree SET hash = zeroblob(32) WHERE level = 8",
            (1, TreeMismatch),
        ),
        ("DELETE FROM tree", (1, TreeMismatch)),
        (
            "UPDATE aggregates SET version = version - 1 WHERE aggregate_id = 's1'",
            (400, VersionMismatch),
        ),
        (
            "DELETE FROM aggregates WHERE aggregate_id = 's1'",
            (400, VersionMismatch),
        ),
        (
            "INSERT INTO aggregates VALUES ('agent', 'session', 'nobody', 3)",
            (400, VersionMismatch),
        ),
    ] {
        let (seq, kind) = after(sql).unwrap_or_else(|| panic!("{sql} goes unseen"));
        assert_eq!(kind, expected.1, "{sql}");
        assert!(seq <= expected.0, "{sql}: {seq}");
    }
}

#[test]
fn another_genesis_is_named() {
    use FindingKind::{OtherLedger, UnknownGenesis, Unreadable};
    let other = Site::empty();
    other.grow(1, 1, "other");
    let id = other.open().id();
    let swapped = format!("UPDATE ledger_genesis SET ledger_id = '{id}'");
    assert_eq!(after(&swapped), Some((1, UnknownGenesis)));
    let moved = "UPDATE ledger_genesis SET created_at = created_at + 1";
    assert_eq!(after(moved), Some((1, UnknownGenesis)));
    assert_eq!(after("DELETE FROM ledger_genesis"), Some((1, Unreadable)));
    assert_eq!(
        after("UPDATE ledger_genesis SET format = 2"),
        Some((1, Unreadable))
    );
    // A whole other ledger in its place verifies by itself, not here.
    let report = verify_path(&other.ledger(), &HONEST.witnessed()).unwrap();
    assert_eq!(found(&report), Some((1, OtherLedger)));
}

#[test]
fn checkpoints_that_were_forged_are_named() {
    let other = Site::empty();
    other.grow(1, 1, "other");
    let mut options = HONEST.witnessed();
    options.key = Some(other.key());
    let report = verify_path(&HONEST.ledger(), &options).unwrap();
    assert_eq!(found(&report), Some((SIZES[0], FindingKind::BadSignature)));
    let mut options = HONEST.witnessed();
    options.against[0] = options.against[0].replace("\n300\n", "\n299\n");
    let report = verify_path(&HONEST.ledger(), &options).unwrap();
    assert_eq!(found(&report), Some((299, FindingKind::BadSignature)));
    options.against[0] = "no note".to_owned();
    let refused = verify_path(&HONEST.ledger(), &options);
    assert!(matches!(
        refused,
        Err(VerifyError::Checkpoint {
            file: 0,
            note: 0,
            ..
        })
    ));
}

#[test]
fn tables_of_other_kinds_are_named() {
    use FindingKind::{MalformedColumn, Unreadable};
    // A copy without STRICT takes any value in any column.
    let loose = "CREATE TABLE loose AS SELECT * FROM events; DROP TABLE events; \
        ALTER TABLE loose RENAME TO events;";
    assert_eq!(after(loose), None, "a sound copy of the rows is sound");
    for change in [
        "aggregate_version = 'nine'",
        "aggregate_version = 1.5",
        "occurred_at = 'today'",
        "occurred_at = 9223372036854775807",
        "event_version = 4294967296",
        "payload = x'7b7d'",
        "payload = NULL",
        "domain = x'07'",
        "hash = 'short'",
        "hash = NULL",
        "prev_hash = x'00'",
        "org_id = x'05'",
        "causation_seq = 'x'",
        "request_id = CAST(x'ff' AS TEXT)",
    ] {
        let sql = format!("{loose} UPDATE events SET {change} WHERE seq = 57;");
        assert_eq!(after(&sql), Some((57, MalformedColumn)), "{change}");
    }
    let huge = "UPDATE events SET payload = printf('%.*c', 8000000, 'x') WHERE seq = 57";
    assert_eq!(after(huge), Some((57, Unreadable)));
    let twice = format!("{loose} INSERT INTO events SELECT * FROM events WHERE seq = 57;");
    assert_eq!(after(&twice), Some((57, FindingKind::Duplicate)));
    let view = "ALTER TABLE events RENAME TO hidden; CREATE VIEW events AS SELECT * FROM hidden;";
    assert_eq!(after(view), Some((1, Unreadable)));
    assert_eq!(after("DROP TABLE events"), Some((1, Unreadable)));
    assert_eq!(after("DROP TABLE tree"), Some((1, Unreadable)));
}

#[test]
fn an_open_ledger_verifies_itself_beside_its_writer() {
    let site = HONEST.copy();
    let ledger = site.open();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 401..=600 {
                ledger
                    .append_blocking(evidence::draft(number, "honest"))
                    .unwrap();
            }
        });
        while !writer.is_finished() {
            let report = ledger.verify(&site.witnessed()).unwrap();
            assert_eq!(report.verdict, Ok(()));
        }
    });
    site.attack("UPDATE events SET payload = '{}' WHERE seq = 599");
    let report = ledger.verify(&site.witnessed()).unwrap();
    assert_eq!(found(&report), Some((599, FindingKind::HashMismatch)));
}

#[test]
fn verification_since_a_checkpoint_looks_at_the_rest_only() {
    let site = HONEST.copy();
    let ledger = site.open();
    let drafts = (401..=420)
        .map(|number| evidence::draft(number, "new"))
        .collect();
    ledger
        .append_blocking(fluffy_ledger::Batch::new(drafts))
        .unwrap();
    let mut options = site.witnessed();
    options.extent = Extent::SinceCheckpoint;
    let report = ledger.verify(&options).unwrap();
    assert_eq!(report.verdict, Ok(()));
    assert_eq!(
        (report.start, report.events),
        (Start::Checkpoint { size: 400 }, 20)
    );
    // What is old is not looked at, what is new is.
    site.attack("UPDATE events SET payload = '{}' WHERE seq = 57");
    assert_eq!(found(&ledger.verify(&options).unwrap()), None);
    site.attack("UPDATE events SET payload = '{}' WHERE seq = 410");
    let bad = found(&ledger.verify(&options).unwrap());
    assert_eq!(bad, Some((410, FindingKind::HashMismatch)));
    // A tree that does not lead to the checkpoint is reason to look at all.
    site.attack("UPDATE events SET hash = zeroblob(32) WHERE seq = 400");
    let bad = found(&ledger.verify(&options).unwrap());
    assert_eq!(bad, Some((57, FindingKind::HashMismatch)));
}

#[test]
fn looking_at_a_ledger_leaves_no_trace() {
    // Closed: everything is in the database.
    let site = HONEST.copy();
    let before = contents(&site.ledger());
    assert_eq!(site.verify().last_seq, 400);
    assert_eq!(contents(&site.ledger()), before);
    // Open elsewhere, with its newest events in the WAL.
    let ledger = site.open();
    ledger.append_blocking(evidence::draft(401, "new")).unwrap();
    let stored = || {
        // Connections of one process share one mapping of the WAL's index, so
        // the mark of this reader shows there; other processes leave none.
        let mut files = contents(&site.ledger());
        files.retain(|(path, ..)| !path.ends_with("ledger.db-shm"));
        files
    };
    let before = stored();
    assert!(
        before
            .iter()
            .any(|(path, size, _)| path.ends_with("ledger.db-wal") && *size > 0)
    );
    let report = site.verify();
    assert_eq!((report.last_seq, report.verdict), (401, Ok(())));
    assert_eq!(stored(), before);
    // A copy of a running ledger, with and without the index of its WAL.
    let copy = site.copy();
    let before = contents(&copy.ledger());
    assert_eq!(copy.verify().last_seq, 401);
    assert_eq!(contents(&copy.ledger()), before);
    fs::remove_file(copy.ledger().join("ledger.db-shm")).unwrap();
    let before = contents(&copy.ledger());
    let report = copy.verify();
    assert_eq!((report.last_seq, report.verdict), (401, Ok(())));
    assert_eq!(contents(&copy.ledger()), before);
    drop(ledger);
    // Where there is nothing, nothing is made.
    let nowhere = site.file("nowhere");
    let missing = verify_path(&nowhere, &VerifyOptions::default());
    assert!(matches!(missing, Err(VerifyError::Io { .. })));
    assert!(!nowhere.exists());
}

#[test]
fn damaged_files_are_found_or_harmless_and_never_a_panic() {
    let (seed, honest) = (fluffy_test_kit::Seed::from_environment(), HONEST.verify());
    let bytes = fs::read(HONEST.database()).unwrap();
    let mut step = 0;
    let mut next = |below: usize| {
        step += 1;
        usize::try_from(seed.choice(step) % below as u64).unwrap()
    };
    let site = HONEST.copy();
    for round in 0..150 {
        let mut damaged = bytes.clone();
        match round % 3 {
            0 => damaged.truncate(next(bytes.len())),
            1 => (0..8).for_each(|_| damaged[next(bytes.len())] ^= 1 << next(8)),
            _ => {
                let at = next(bytes.len() / 4096) * 4096;
                damaged[at..at + 4096].fill(u8::try_from(next(256)).unwrap());
            }
        }
        fs::write(site.database(), &damaged).unwrap();
        // Damage in a page nobody reads for this is no tampering with events.
        if let Ok(report) = verify_path(&site.ledger(), &HONEST.witnessed())
            && report.is_sound()
        {
            assert_eq!(
                report.root,
                honest.root,
                "round {round} of seed {}",
                seed.value()
            );
        }
    }
}
