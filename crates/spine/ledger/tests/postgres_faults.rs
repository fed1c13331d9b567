//! Processes and servers die in the middle of appends; nothing may be lost.
//!
//! Each test brings its own server or database. The writers that get killed
//! are this very binary, started again with a task in its environment.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod postgres_kit;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fluffy_ledger::{AppendError, Filter, StoreError};
use fluffy_test_kit::{FreshDatabase, PrivatePostgres, Seed, campaign, wait_for};

use postgres_kit::{Acknowledged, Load, check, draft, open};

const LIMIT: Duration = Duration::from_secs(60);
const CHILD_ENV: &str = "FLUFFY_LEDGER_CHILD";

/// Appends with several threads and says what was acknowledged: the task of a
/// child, `<first writer> <writers> <events of each> <url>`.
fn append_and_tell(task: &str) {
    let parts: Vec<&str> = task.splitn(4, ' ').collect();
    let number = |index: usize| parts[index].parse::<u64>().unwrap();
    let (first, writers, events) = (number(0), number(1), number(2));
    let ledger = open(parts[3]);
    let append = |writer: u64| {
        let ledger = ledger.clone();
        thread::spawn(move || {
            for number in 0..events {
                let seq = ledger
                    .append_blocking(draft((writer, number)))
                    .unwrap()
                    .last_seq;
                // One write per line: a killed process leaves no torn ones.
                let line = format!("ACK {seq} {writer} {number}\n");
                std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
            }
        })
    };
    let threads: Vec<_> = (first..first + writers).map(append).collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

/// Starts a child of the test `name`, which has to call [`as_child`] first.
fn start_child(name: &str, task: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD_ENV, task)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Does the work of a child, if this is one.
fn as_child() -> bool {
    let task = std::env::var(CHILD_ENV);
    task.is_ok_and(|task| {
        append_and_tell(&task);
        true
    })
}

/// Reads what a child says until it ends, or until `enough` lines came.
fn listen(child: &mut Child, enough: usize, acknowledged: &mut Acknowledged) {
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut killed = false;
    let before = acknowledged.len();
    for line in output.lines() {
        let Ok(line) = line else { break };
        let Some(rest) = line.strip_prefix("ACK ") else {
            continue;
        };
        let numbers: Vec<u64> = rest
            .split(' ')
            .map(|number| number.parse().unwrap())
            .collect();
        let twice = acknowledged.insert(numbers[0], (numbers[1], numbers[2]));
        assert_eq!(twice, None, "{} was given out twice", numbers[0]);
        if !killed && acknowledged.len() - before >= enough {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
}

#[test]
fn killed_writers_lose_nothing_acknowledged() {
    if as_child() {
        return;
    }
    let database = FreshDatabase::create().unwrap();
    let seed = Seed::from_environment();
    let mut acknowledged = Acknowledged::new();
    for round in 0..campaign(5, 50) {
        let enough = 1 + seed.choice(round) % 400;
        let task = format!("{} 16 1000000 {}", round * 100, database.url());
        let mut child = start_child("killed_writers_lose_nothing_acknowledged", &task);
        listen(
            &mut child,
            usize::try_from(enough).unwrap(),
            &mut acknowledged,
        );
    }
    assert!(!acknowledged.is_empty());
    check(&open(database.url()), &acknowledged);
}

#[test]
fn three_processes_number_without_a_gap() {
    if as_child() {
        return;
    }
    let database = FreshDatabase::create().unwrap();
    let children: Vec<_> = (0..3)
        .map(|process| {
            let task = format!("{} 4 60 {}", process * 100, database.url());
            let mut child = start_child("three_processes_number_without_a_gap", &task);
            thread::spawn(move || {
                let mut acknowledged = Acknowledged::new();
                listen(&mut child, usize::MAX, &mut acknowledged);
                acknowledged
            })
        })
        .collect();
    let acknowledged: Acknowledged = children
        .into_iter()
        .flat_map(|child| child.join().unwrap())
        .collect();
    assert_eq!(acknowledged.len(), 3 * 4 * 60);
    assert!(
        acknowledged.keys().copied().eq(1..=3 * 4 * 60),
        "a gap or a double"
    );
    check(&open(database.url()), &acknowledged);
}

#[test]
fn writers_recover_from_restarts_of_the_server() {
    let mut postgres = PrivatePostgres::start().unwrap();
    let database = FreshDatabase::create_in(&postgres).unwrap();
    let ledger = open(database.url());
    let load = Load::start(&ledger, 16);
    let goes_on = |what: &str| {
        let before = load.count();
        wait_for(what, LIMIT, || (load.count() > before + 50).then_some(())).unwrap();
    };
    for _ in 0..campaign(2, 10) {
        goes_on("events are appended");
        postgres.restart().unwrap();
        goes_on("events are appended after a fast restart");
        postgres.kill().unwrap();
        postgres.resume().unwrap();
        goes_on("events are appended after a crash");
    }
    check(&ledger, &load.stop());
}

#[test]
fn a_server_that_stays_away_is_named_and_forgiven() {
    let mut postgres = PrivatePostgres::start().unwrap();
    let database = FreshDatabase::create_in(&postgres).unwrap();
    let ledger = open(database.url());
    let first = ledger.append_blocking(draft((0, 0))).unwrap();
    postgres.stop().unwrap();
    let ticket = ledger.record(draft((0, 1))).unwrap();
    let error = ledger.append_blocking(draft((0, 2))).unwrap_err();
    assert!(
        matches!(error, AppendError::Store(StoreError::Unavailable(_))),
        "{error:?}"
    );
    assert!(matches!(ledger.head(), Err(StoreError::Unavailable(_))));
    postgres.resume().unwrap();
    // What was recorded while it was away is written without being asked for.
    let seq = wait_for("the record is written", LIMIT, || ticket.seq()).unwrap();
    assert_eq!((first.last_seq, seq), (1, 2));
    check(&ledger, &[(1, (0, 0)), (2, (0, 1))].into());
}

#[test]
fn subscribers_get_everything_while_listeners_are_killed() {
    let database = FreshDatabase::create().unwrap();
    let (reader, writer) = (open(database.url()), open(database.url()));
    let mut subscription = reader.subscribe(1, Filter::all());
    let end_listeners = "select pg_terminate_backend(pid) from pg_stat_activity \
        where datname = current_database() and application_name = 'fluffy-ledger-signal'";
    for number in 0..20 {
        database.sql(end_listeners).unwrap();
        let appended = writer.append_blocking(draft((0, number))).unwrap();
        let delivery = subscription
            .next_blocking(LIMIT)
            .unwrap()
            .expect("it arrives in time");
        assert_eq!(delivery.seq(), appended.last_seq);
    }
}

#[test]
fn a_stuck_transaction_makes_appends_busy_and_no_more() {
    let database = FreshDatabase::create().unwrap();
    let ledger = open(database.url());
    ledger.append_blocking(draft((0, 0))).unwrap();
    let stuck = "select pid from pg_stat_activity where application_name = 'stuck' \
        and datname = current_database() and wait_event = 'PgSleep'";
    thread::scope(|scope| {
        scope.spawn(|| {
            // Ends with an error, because it gets terminated.
            let _ = database.sql(
                "begin; set application_name = 'stuck'; \
                 select from ledger.ledger_head for update; select pg_sleep(120)",
            );
        });
        let pid = wait_for("the head is locked", LIMIT, || {
            database.sql(stuck).ok().filter(|pid| !pid.is_empty())
        });
        let started = Instant::now();
        let error = ledger.append_blocking(draft((0, 1))).unwrap_err();
        assert!(
            matches!(error, AppendError::Store(StoreError::Busy(_))),
            "{error:?}"
        );
        assert!(started.elapsed() < LIMIT);
        // Readers never wait for it.
        assert_eq!(ledger.read(1, 10).unwrap().len(), 1);
        let end = format!("select pg_terminate_backend({})", pid.unwrap());
        database.sql(&end).unwrap();
    });
    assert_eq!(ledger.append_blocking(draft((0, 1))).unwrap().last_seq, 2);
}
