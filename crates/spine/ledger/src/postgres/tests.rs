//! The engine against a real server, from inside the crate.
//!
//! What every engine must do is in the conformance suite, what happens when
//! processes and servers die in `tests/postgres_faults.rs`.

use std::ops::ControlFlow;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_base::id::LedgerId;
use fluffy_test_kit::{FreshDatabase, wait_for};
use serde_json::json;

use super::session::{Link, Use};
use super::{PostgresAddress, Store};
use crate::chain::{Command, Genesis, Head, Verdict};
use crate::class::Durability;
use crate::draft::{Draft, Expected};
use crate::engine::{Anchor, Edition, Engine};
use crate::error::{AppendError, StoreError};
use crate::event::{Actor, Aggregate, Domain};
use crate::export::ExportOptions;
use crate::ledger::{Ledger, LedgerOptions};
use crate::verify::{Start, VerifyOptions};
use crate::view::{Cell, Schema, Statement};

const LIMIT: Duration = Duration::from_secs(30);

fn address(database: &FreshDatabase) -> PostgresAddress {
    let address: PostgresAddress = database.url().parse().unwrap();
    address.with_partition_events(1_000)
}

fn genesis(bits: u128) -> Genesis {
    Genesis {
        ledger_id: LedgerId::from_bits(bits),
        created_at: Timestamp::from_micros(7),
    }
}

fn open() -> (FreshDatabase, Store) {
    let database = FreshDatabase::create().unwrap();
    let store = Store::open(&address(&database), &genesis(1)).unwrap();
    (database, store)
}

fn command(events: usize) -> Command {
    let draft = |number: usize| {
        let aggregate = Aggregate::new("session", format!("s{}", number % 7));
        Draft::new(
            Domain::Agent,
            aggregate,
            "tool.execute",
            Actor::system("test"),
        )
        .payload(json!({"number": number}))
        .prepare(Timestamp::from_micros(9))
        .unwrap()
    };
    Command {
        prepared: (0..events).map(draft).collect(),
        expected: Vec::new(),
        after: None,
        durability: Durability::Operational,
        ticket: None,
        verdict: Verdict::Waiting,
    }
}

fn append(store: &Store, events: usize) -> Head {
    let mut writer = store.writer().unwrap();
    let mut commands = [command(events)];
    writer
        .commit(&mut commands, Durability::Operational)
        .unwrap()
}

/// Every `seq` that a scan shows, 0 for a row that can't be read.
fn positions(store: &Store, from: u64) -> Vec<u64> {
    let mut seen = Vec::new();
    let scanned = store.scan(from, &mut |row| {
        seen.push(row.map_or(0, |row| row.seq));
        ControlFlow::Continue(())
    });
    scanned.unwrap();
    seen
}

#[test]
fn many_processes_create_one_ledger() {
    let database = FreshDatabase::create().unwrap();
    let start = Arc::new(Barrier::new(6));
    let opening: Vec<_> = (0..6)
        .map(|bits| {
            let (address, start) = (address(&database), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                Store::open(&address, &genesis(bits)).unwrap().genesis()
            })
        })
        .collect();
    let opened: Vec<_> = opening
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    assert!(
        opened.iter().all(|genesis| *genesis == opened[0]),
        "{opened:?}"
    );
}

#[test]
fn a_database_that_can_hold_no_ledger_is_refused() {
    let (database, store) = open();
    drop(store);
    database
        .sql("update ledger.ledger_schema set version = 99")
        .unwrap();
    let error = Store::open(&address(&database), &genesis(1)).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("version 99, newer"), "{source}");
    database
        .sql("create database ascii_only encoding 'SQL_ASCII' locale 'C' template template0")
        .unwrap();
    let url = database.url().replace(database.name(), "ascii_only");
    let refused = Store::open(&url.parse().unwrap(), &genesis(1));
    database
        .sql("drop database ascii_only with (force)")
        .unwrap();
    let error = refused.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("SQL_ASCII"), "{source}");
}

#[test]
fn old_events_go_with_their_partitions_and_the_rest_stays() {
    let (database, store) = open();
    let anchor = Anchor {
        head: append(&store, 1_500),
        note: "signed".to_owned(),
    };
    append(&store, 1_000);
    let names = "select string_agg(relname, ',' order by relname) from pg_inherits \
        join pg_class on oid = inhrelid where inhparent = 'ledger.events'::regclass";
    assert_eq!(database.sql(names).unwrap(), "events_0,events_1,events_2");
    assert_eq!(store.anchor().unwrap(), None);
    store.prune(&anchor).unwrap();
    assert_eq!(database.sql(names).unwrap(), "events_1,events_2");
    assert_eq!(positions(&store, 1), (1_501..=2_500).collect::<Vec<_>>());
    assert_eq!(store.anchor().unwrap(), Some(anchor.clone()));
    // An older anchor never brings the start back.
    let older = Anchor {
        head: Head {
            seq: 0,
            ..Head::empty(&genesis(1))
        },
        ..anchor.clone()
    };
    store.prune(&older).unwrap();
    assert_eq!(store.anchor().unwrap(), Some(anchor));
    assert_eq!(append(&store, 10).seq, 2_510);
}

#[test]
fn what_was_dropped_is_still_proved_by_its_archive() {
    let (database, store) = open();
    let ledger = Ledger::start(Engine::Postgres(store), LedgerOptions::default()).unwrap();
    let Engine::Postgres(store) = &*ledger.shared.engine else {
        panic!("another engine");
    };
    let anchor = Anchor {
        head: append(store, 1_500),
        note: String::new(),
    };
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("archive.jsonl");
    let mut file = std::fs::File::create(&archive).unwrap();
    ledger.export(&mut file, &ExportOptions::default()).unwrap();
    append(store, 700);
    store.prune(&anchor).unwrap();
    let with_archive = VerifyOptions {
        archives: vec![archive],
        ..VerifyOptions::default()
    };
    let whole = ledger.verify(&with_archive).unwrap();
    assert_eq!(
        (whole.verdict, whole.start, whole.last_seq),
        (Ok(()), Start::Genesis, 2_200)
    );
    let rest = ledger.verify(&VerifyOptions::default()).unwrap();
    let start = Start::Archived {
        seq: 1_500,
        signed: false,
    };
    assert_eq!(
        (rest.verdict, rest.start, rest.events),
        (Ok(()), start, 700)
    );
    // A forged event in place of a dropped one would be read, so it is found.
    let columns = crate::row::COLUMNS.join(", ");
    let forged = columns.replacen("seq", "1200", 1);
    let forge = format!(
        "insert into ledger.events ({columns}) select {forged} from ledger.events where seq = 1600"
    );
    database.sql(&forge).unwrap();
    let found = ledger
        .verify(&VerifyOptions::default())
        .unwrap()
        .verdict
        .unwrap_err();
    assert_eq!(found.seq, 1_200, "{found}");
}

#[test]
fn events_are_refused_to_be_changed() {
    let (database, store) = open();
    append(&store, 3);
    for (statement, reason) in [
        (
            "update ledger.events set payload = '{}' where seq = 2",
            "never changed",
        ),
        (
            "update ledger.events_0 set seq = 9 where seq = 2",
            "never changed",
        ),
        (
            "delete from ledger.events where seq = 3",
            "only deleted after they are archived",
        ),
        (
            "delete from ledger.events_0",
            "only deleted after they are archived",
        ),
        ("truncate ledger.events", "never changed"),
        ("truncate ledger.events_0", "never changed"),
    ] {
        let error = database.sql(statement).unwrap_err().to_string();
        assert!(error.contains(reason), "{statement}: {error}");
    }
    assert_eq!(positions(&store, 1), [1, 2, 3]);
}

#[test]
fn a_scan_sees_forged_rows_and_holes_at_every_edge_of_a_page() {
    let (database, store) = open();
    append(&store, 800);
    let copy = |seq: u64| {
        let columns = crate::row::COLUMNS.join(", ");
        format!(
            "insert into ledger.events ({columns}) select {columns} from ledger.events where seq = {seq};"
        )
    };
    database
        .sql(
            "alter table ledger.events drop constraint events_pkey; \
              alter table ledger.events disable trigger user",
        )
        .unwrap();
    // Rows 512 and 513 are where the first page ends and the next begins.
    database
        .sql(&format!("{}{}", copy(512), copy(513)))
        .unwrap();
    let mut wanted: Vec<u64> = (1..=800).collect();
    wanted.insert(512, 512);
    wanted.insert(514, 513);
    assert_eq!(positions(&store, 1), wanted);
    database
        .sql(
            "delete from ledger.events where seq between 513 and 600; \
              insert into ledger.events select 950, domain, aggregate_type, aggregate_id, \
              aggregate_version, event_type, event_version, occurred_at, actor_type, actor_id, \
              actor_on_behalf_of, org_id, app_id, env_id, request_id, idempotency_key, \
              correlation_id, causation_seq, decision_seq, payload, prev_hash, hash \
              from ledger.events where seq = 1",
        )
        .unwrap();
    let mut wanted: Vec<u64> = (1..=512).collect();
    wanted.push(512);
    wanted.extend(601..=800);
    wanted.push(950);
    assert_eq!(positions(&store, 1), wanted);
}

#[test]
fn a_column_of_another_type_is_a_fault_and_no_panic() {
    for (change, column) in [
        (
            "alter column payload drop not null; update ledger.events set payload = null",
            "payload",
        ),
        (
            "alter column aggregate_version type text using 'x'",
            "aggregate_version",
        ),
        ("alter column actor_id type int using 1", "actor_id"),
        (
            "alter column occurred_at set default 0; update ledger.events set occurred_at = 9e18",
            "occurred_at",
        ),
        (
            "alter column event_version set default 0; update ledger.events set event_version = -1",
            "event_version",
        ),
        ("alter column hash type bytea using 'short'", "hash"),
    ] {
        let (database, store) = open();
        append(&store, 2);
        // The statement is prepared before the table changes under it.
        assert_eq!(positions(&store, 1), [1, 2]);
        database
            .sql("alter table ledger.events disable trigger user")
            .unwrap();
        database
            .sql(&format!("alter table ledger.events {change}"))
            .unwrap();
        let mut faults = Vec::new();
        let scanned = store.scan(1, &mut |row| {
            faults.extend(row.err().map(|fault| (fault.seq, fault.column)));
            ControlFlow::Continue(())
        });
        scanned.unwrap();
        assert_eq!(faults, [(1, column), (2, column)], "{change}");
    }
}

#[test]
fn errors_of_the_server_have_the_kind_that_callers_act_on() {
    let database = FreshDatabase::create().unwrap();
    let link = Link::new(&address(&database)).unwrap();
    for (code, kind) in [
        ("53100", "Full"),
        ("55P03", "Busy"),
        ("57014", "Busy"),
        ("40P01", "Busy"),
        ("XX001", "Corrupt"),
        ("57P01", "Unavailable"),
        ("57P03", "Unavailable"),
        ("53300", "Unavailable"),
        ("25006", "Unavailable"),
        ("42P01", "Other"),
    ] {
        let session = link.connect(Use::View).unwrap();
        let sql = format!("do $$ begin raise 'no' using errcode = '{code}'; end $$");
        let error = StoreError::from(session.batch(&sql).unwrap_err());
        assert!(format!("{error:?}").starts_with(kind), "{code}: {error:?}");
    }
}

#[test]
fn a_full_disk_stores_nothing_and_passes() {
    let (database, store) = open();
    append(&store, 2);
    database
        .sql(
            "create function ledger.full() returns trigger language plpgsql as \
              $$ begin raise 'no space left' using errcode = 'disk_full'; end $$; \
              create trigger full_disk before update on ledger.ledger_head \
              for each row execute function ledger.full()",
        )
        .unwrap();
    let mut writer = store.writer().unwrap();
    let mut commands = [command(5)];
    let error = writer
        .commit(&mut commands, Durability::Security)
        .unwrap_err();
    assert!(matches!(error, StoreError::Full(_)), "{error:?}");
    assert_eq!(positions(&store, 1), [1, 2]);
    database
        .sql("drop trigger full_disk on ledger.ledger_head")
        .unwrap();
    let head = writer.commit(&mut commands, Durability::Security).unwrap();
    assert_eq!((head.seq, positions(&store, 1).len()), (7, 7));
}

#[test]
fn a_head_that_others_moved_is_never_built_upon() {
    let (database, store) = open();
    let other = Store::open(&address(&database), &genesis(2)).unwrap();
    let mut writers = [store.writer().unwrap(), other.writer().unwrap()];
    let mut seq = 0;
    // Long enough alone to stop asking where the head is, then the other one;
    // the last steps reach into the next partition.
    for (turn, events) in [1, 2, 3, 4, 1, 1, 1, 1, 700, 500, 5]
        .into_iter()
        .enumerate()
    {
        for durability in [Durability::Security, Durability::Operational] {
            let writer = &mut writers[usize::from([4, 6, 9].contains(&turn))];
            let mut commands = [command(events)];
            let head = writer.commit(&mut commands, durability).unwrap();
            seq += u64::try_from(events).unwrap();
            assert_eq!(head.seq, seq, "turn {turn}");
        }
    }
    assert_eq!(positions(&store, 1), (1..=seq).collect::<Vec<_>>());
    drop(store);
    let ledger = Ledger::open_postgres(&address(&database), LedgerOptions::default()).unwrap();
    let report = ledger.verify(&VerifyOptions::default()).unwrap();
    assert_eq!((report.verdict, report.events), (Ok(()), seq));
}

#[test]
fn a_conflict_names_the_version_that_others_made() {
    let (database, store) = open();
    let other = Store::open(&address(&database), &genesis(2)).unwrap();
    let mut writer = store.writer().unwrap();
    for _ in 0..4 {
        writer
            .commit(&mut [command(1)], Durability::Security)
            .unwrap();
    }
    append(&other, 1);
    let expecting = |version| {
        let aggregate = Aggregate::new("session", "s0");
        let domain = Domain::Agent;
        let expected = vec![Expected {
            domain,
            aggregate,
            version,
        }];
        Command {
            expected,
            ..command(1)
        }
    };
    let mut commands = [expecting(4), expecting(5)];
    let head = writer.commit(&mut commands, Durability::Security).unwrap();
    assert_eq!(head.seq, 6);
    assert!(matches!(
        commands[0].verdict,
        Verdict::Refused(AppendError::Conflict { current: 5, .. })
    ));
    assert!(matches!(commands[1].verdict, Verdict::Sealed));
}

#[tokio::test]
async fn a_ledger_is_opened_used_and_dropped_inside_a_runtime() {
    let database = FreshDatabase::create().unwrap();
    let ledger = Ledger::open_postgres(&address(&database), LedgerOptions::default()).unwrap();
    let draft = || {
        Draft::new(
            Domain::Agent,
            Aggregate::new("session", "s"),
            "tool.execute",
            Actor::system("test"),
        )
    };
    for seq in 1..=4 {
        assert_eq!(ledger.append(draft()).await.unwrap().last_seq, seq);
    }
    drop(Engine::writer(&ledger.shared.engine).unwrap());
}

#[test]
fn what_another_process_appends_is_heard_without_hints_too() {
    let (database, store) = open();
    let other = Store::open(&address(&database), &genesis(2)).unwrap();
    let heard = store.heard();
    let hears = |seq: u64| {
        wait_for("it is heard", LIMIT, || {
            (*heard.borrow() == seq).then_some(())
        })
    };
    append(&other, 1);
    hears(1).unwrap();
    // A forged hint must not hide what really happens.
    database
        .sql("notify ledger_appended, '18446744073709551615'")
        .unwrap();
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
        where datname = current_database() and application_name = 'fluffy-ledger-signal'";
    assert_eq!(database.sql(end).unwrap(), "2");
    append(&other, 1);
    hears(2).unwrap();
}

const SHAPE: Schema = Schema {
    version: 3,
    sql: &["CREATE TABLE counts (name TEXT PRIMARY KEY, total BIGINT NOT NULL, last BYTEA)"],
    tables: &["counts"],
};

fn count(name: &str, by: i64) -> Statement {
    Statement {
        sql: "INSERT INTO counts (name, total) VALUES ($1, $2) \
              ON CONFLICT (name) DO UPDATE SET total = counts.total + excluded.total"
            .into(),
        params: vec![name.into(), by.into()],
    }
}

#[test]
fn a_view_moves_with_its_checkpoint_and_is_swapped_whole() {
    let (_database, store) = open();
    let engine = Engine::Postgres(store);
    let mut view = engine.view("tally-1", &SHAPE, Edition::Current).unwrap();
    assert_eq!(view.applied().unwrap(), 0);
    let statements: Vec<_> = (0..200)
        .map(|n| count(if n % 2 == 0 { "Ä" } else { "b" }, n))
        .collect();
    view.commit(&statements, 0, 200).unwrap();
    assert!(view.commit(&statements, 0, 200).is_err(), "applied twice");
    let bad = [
        count("c", 1),
        Statement {
            sql: "SELECT 1 / 0".into(),
            params: Vec::new(),
        },
    ];
    assert!(view.commit(&bad, 200, 201).is_err());
    assert_eq!(view.applied().unwrap(), 200);
    let sums =
        "SELECT name, total, last, sum(total) OVER () FROM counts ORDER BY name COLLATE \"C\"";
    let rows = engine.query_view("tally-1", sums, &[]).unwrap();
    let row =
        |name: &str, total: i64| vec![name.into(), total.into(), Cell::Null, 19_900i64.into()];
    assert_eq!((rows.applied_seq, rows.truncated), (200, false));
    assert_eq!(rows.rows, [row("b", 10_000), row("Ä", 9_900)]);
    let write = engine.query_view("tally-1", "DELETE FROM counts RETURNING 1", &[]);
    assert!(write.is_err(), "a query wrote");

    let mut next = engine.view("tally-1", &SHAPE, Edition::Next).unwrap();
    next.commit(&statements, 0, 200).unwrap();
    assert_eq!(next.digest(&SHAPE).unwrap(), view.digest(&SHAPE).unwrap());
    next.commit(&[count("b", 1)], 200, 201).unwrap();
    engine.publish_view("tally-1", next).unwrap();
    // Whoever had the old one open goes on with the new one.
    assert_eq!(view.applied().unwrap(), 201);
    view.commit(&[count("b", 1)], 201, 202).unwrap();
    let total = engine.query_view(
        "tally-1",
        "SELECT total FROM counts WHERE name = $1",
        &["b".into()],
    );
    assert_eq!(total.unwrap().rows, [[Cell::Integer(10_002)]]);

    let newer = Schema {
        version: 4,
        ..SHAPE
    };
    let mut view = engine.view("tally-1", &newer, Edition::Current).unwrap();
    assert_eq!(view.applied().unwrap(), 0, "another shape starts again");
}

#[test]
fn both_engines_digest_a_view_alike() {
    let (_database, store) = open();
    let directory = tempfile::tempdir().unwrap();
    let embedded = crate::sqlite::Store::open(directory.path(), &genesis(1)).unwrap();
    let digests = [Engine::Postgres(store), Engine::Sqlite(embedded)].map(|engine| {
        let mut view = engine.view("tally", &SHAPE, Edition::Current).unwrap();
        let statements = [count("b", 1), count("Ä", -2), count("a", 3), count("B", 4)];
        view.commit(&statements, 0, 4).unwrap();
        view.digest(&SHAPE).unwrap()
    });
    assert_eq!(digests[0], digests[1]);
}

#[test]
fn names_that_would_collide_are_refused() {
    let (_database, store) = open();
    for name in ["", "a_next", "A", "a\"b", &"x".repeat(51)] {
        assert!(
            store.view(name, &SHAPE, Edition::Current).is_err(),
            "{name}"
        );
    }
}
