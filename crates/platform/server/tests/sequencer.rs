//! The sequencer with a toy machine, on both engines: no rule is ever broken.
//!
//! Processes that get killed are this very binary, started again with a task
//! in its environment.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs,
    reason = "tests"
)]

mod bank;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use fluffy_ledger::{Actor, Aggregate, Batch, Domain, Draft, Ledger, VerifyOptions};
use fluffy_server::fold::{Fold, Machine, Position};
use fluffy_server::sequencer::{Answer, Sequencer, SequencerOptions, SubmitError};
use fluffy_test_kit::{FreshDatabase, PrivatePostgres, Random, wait_for};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use bank::{Bank, Job, Said, fold, mark, open, start};

const LIMIT: Duration = Duration::from_secs(90);
const CHILD_ENV: &str = "FLUFFY_SEQUENCER_CHILD";

/// Somewhere several sequencers can open one ledger.
enum Place {
    Directory(TempDir),
    Database(FreshDatabase),
}

impl Place {
    fn directory() -> Self {
        Self::Directory(TempDir::new().unwrap())
    }

    fn database() -> Self {
        Self::Database(FreshDatabase::create().unwrap())
    }

    fn address(&self) -> String {
        match self {
            Self::Directory(directory) => {
                let path = directory.path().join("ledger");
                path.to_str().unwrap().to_owned()
            }
            Self::Database(database) => database.url().to_owned(),
        }
    }
}

fn job(random: &mut Random, mark: u64) -> Job {
    let name = |random: &mut Random| format!("n{}", random.below(12));
    match random.below(4) {
        0 => Job::Open {
            name: name(random),
            mark,
        },
        1 => Job::Look { name: name(random) },
        _ => Job::Pay {
            from: name(random),
            to: name(random),
            mark,
        },
    }
}

/// Submits jobs from several tasks; what was acknowledged, by mark.
fn submit_many(
    sequencer: &Sequencer<Bank>,
    seed: u64,
    tasks: u64,
    each: u64,
) -> HashMap<u64, (Answer<Said>, bool)> {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let submit = |task: u64| {
            let sequencer = sequencer.clone();
            tokio::spawn(async move {
                let mut random = Random::new(seed * 1_000 + task);
                let mut answers = HashMap::new();
                for number in 0..each {
                    let mark = (seed * 1_000 + task) * 1_000_000 + number + 1;
                    let job = job(&mut random, mark);
                    let looks = matches!(job, Job::Look { .. });
                    let answer = sequencer.submit(job).await.unwrap();
                    // Whoever has the answer finds it in the state.
                    assert!(sequencer.applied() >= answer.position);
                    answers.insert(mark, (answer, looks));
                }
                answers
            })
        };
        let tasks: Vec<_> = (0..tasks).map(submit).collect();
        let mut answers = HashMap::new();
        for task in tasks {
            answers.extend(task.await.unwrap());
        }
        answers
    })
}

/// Everything acknowledged is in the ledger once and where it was said to be,
/// nothing refused is, and no rule was broken.
fn check(ledger: &Ledger, answers: &HashMap<u64, (Answer<Said>, bool)>) -> Bank {
    let mut found: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut next = 1;
    loop {
        let events = ledger.read(next, 1_000).unwrap();
        let Some(last) = events.last() else { break };
        next = last.seq + 1;
        for event in &events {
            found.entry(mark(event)).or_default().push(event.seq);
        }
    }
    for (mark, (answer, looks)) in answers {
        match (&answer.reply, found.get(mark)) {
            (Said::Done, Some(seqs)) => {
                assert_eq!(seqs.last(), Some(&answer.position.seq));
                assert!(seqs.len() <= 2);
            }
            (Said::Refused | Said::Balance(_), None) => {
                assert_eq!(matches!(answer.reply, Said::Balance(_)), *looks)
            }
            other => panic!("{mark}: {other:?}"),
        }
    }
    assert_eq!(
        ledger.verify(&VerifyOptions::default()).unwrap().verdict,
        Ok(())
    );
    let bank = fold(ledger);
    assert_eq!(bank.broken, Vec::<String>::new());
    bank
}

fn three_at_once_break_no_rule(place: &Place) {
    let ledgers: Vec<Ledger> = (0..3).map(|_| open(&place.address())).collect();
    let sequencers: Vec<_> = ledgers.iter().map(start).collect();
    let answers: HashMap<_, _> = thread::scope(|scope| {
        let submit = |(seed, sequencer)| scope.spawn(move || submit_many(sequencer, seed, 8, 25));
        let threads: Vec<_> = (1..).zip(&sequencers).map(submit).collect();
        let answers = threads.into_iter().flat_map(|t| t.join().unwrap());
        answers.collect()
    });
    assert_eq!(answers.len(), 600);
    let bank = check(&ledgers[0], &answers);
    for sequencer in &sequencers {
        wait_for("every replica is at the end", LIMIT, || {
            (sequencer.applied().seq == bank.seq).then_some(())
        })
        .unwrap();
        assert_eq!(sequencer.read(Bank::clone), bank);
        assert_eq!(sequencer.lag().events, bank.seq);
    }
    // A replica that comes late folds the same.
    assert_eq!(start(&ledgers[0]).read(Bank::clone), bank);
}

#[test]
fn three_sequencers_on_one_file_break_no_rule() {
    three_at_once_break_no_rule(&Place::directory());
}

#[test]
fn three_sequencers_on_one_database_break_no_rule() {
    three_at_once_break_no_rule(&Place::database());
}

/// The control: deciding on a state that is at the end, but appending without
/// naming that end.
fn without_the_condition_a_rule_breaks(place: &Place) {
    let ledgers: Vec<Ledger> = (0..3).map(|_| open(&place.address())).collect();
    for round in 0..200 {
        let together = Barrier::new(3);
        thread::scope(|scope| {
            for ledger in &ledgers {
                let together = &together;
                scope.spawn(move || {
                    let mut open = Job::Open {
                        name: format!("n{round}"),
                        mark: 1,
                    };
                    let mut fold = Fold::<Bank>::empty(ledger);
                    fold.finish(ledger).unwrap();
                    let decided = fold.machine.decide(&mut open);
                    together.wait();
                    ledger.append_blocking(Batch::new(decided.drafts)).unwrap();
                });
            }
        });
        if !fold(&ledgers[0]).broken.is_empty() {
            return;
        }
    }
    panic!("no rule was broken, so the tests above show nothing");
}

#[test]
fn without_the_condition_a_rule_breaks_on_a_file() {
    without_the_condition_a_rule_breaks(&Place::directory());
}

#[test]
fn without_the_condition_a_rule_breaks_on_a_database() {
    without_the_condition_a_rule_breaks(&Place::database());
}

fn open_account(name: &str) -> Job {
    Job::Open {
        name: name.to_owned(),
        mark: 1,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_see_only_what_is_committed_and_may_be_held_back() {
    let place = Place::directory();
    let sequencer = start(&open(&place.address()));
    let first = sequencer.submit(open_account("a")).await.unwrap();
    assert_eq!(first.position, Position { epoch: 1, seq: 1 });
    sequencer.hold();
    let second = sequencer.submit(open_account("b")).await.unwrap();
    assert_eq!(second.reply, Said::Done);
    assert_eq!(sequencer.applied(), first.position);
    assert!(sequencer.read(|bank| !bank.accounts.contains_key("b")));
    let short = Duration::from_millis(1);
    let late = sequencer
        .wait_for(second.position, short)
        .await
        .unwrap_err();
    assert_eq!((late.wanted.seq, late.applied.seq), (2, 1));
    // It is known of what is kept from them, and so how late they are.
    let long = Duration::from_millis(700);
    wait_for("they are behind", LIMIT, || {
        let lag = Duration::from_micros(sequencer.lag().median);
        (sequencer.behind() > long && lag > long / 2).then_some(())
    })
    .unwrap();
    // Decisions rest on everything, seen or not.
    let again = sequencer.submit(open_account("b")).await.unwrap();
    assert_eq!(again.reply, Said::Refused);
    sequencer.release();
    sequencer.wait_for(second.position, LIMIT).await.unwrap();
    assert!(sequencer.read(|bank| bank.accounts.contains_key("b")));
    follows(&sequencer, long);
    sequencer.close();
    let closed = sequencer.submit(open_account("c")).await.unwrap_err();
    assert!(matches!(closed, SubmitError::Closed), "{closed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_decision_spoils_no_other() {
    let place = Place::directory();
    let ledger = open(&place.address());
    let sequencer = start(&ledger);
    let jobs = (0..40).map(|number| {
        let sequencer = sequencer.clone();
        tokio::spawn(async move {
            let job = match number % 2 {
                0 => Job::Nonsense,
                _ => open_account(&format!("n{number}")),
            };
            (number, sequencer.submit(job).await)
        })
    });
    for job in jobs.collect::<Vec<_>>() {
        let (number, answer) = job.await.unwrap();
        match answer {
            Ok(answer) => assert!(number % 2 == 1 && answer.reply == Said::Done),
            Err(error) => {
                assert!(number % 2 == 0, "{error:?}");
                assert!(matches!(error, SubmitError::Unrecordable(_)), "{error:?}");
            }
        }
    }
    assert_eq!(fold(&ledger).accounts.len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_event_stops_a_replica_before_it() {
    let place = Place::directory();
    let ledger = open(&place.address());
    let sequencer = start(&ledger);
    sequencer.submit(open_account("a")).await.unwrap();
    let strange = Draft::new(
        Domain::Platform,
        Aggregate::new("account", "a"),
        "account.from_the_future",
        Actor::system("test"),
    );
    ledger.append(strange).await.unwrap();
    wait_for("it stops", LIMIT, || sequencer.halted()).unwrap();
    let refused = sequencer.submit(open_account("b")).await.unwrap_err();
    assert!(matches!(refused, SubmitError::Halted(_)), "{refused:?}");
    wait_for("it says that it stopped", LIMIT, || {
        let lag = Duration::from_micros(sequencer.lag().percentile_99);
        let long = Duration::from_millis(700);
        (sequencer.behind() > long && lag > long / 2).then_some(())
    })
    .unwrap();
    assert_eq!(sequencer.applied().seq, 1);
    assert_eq!(ledger.head().unwrap().seq, 2, "nothing was appended");
    let start = Sequencer::<Bank>::start(ledger, SequencerOptions::default());
    assert!(start.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_others_are_seen_without_asking() {
    for place in [Place::directory(), Place::database()] {
        let (here, there) = (
            start(&open(&place.address())),
            start(&open(&place.address())),
        );
        let answer = here.submit(open_account("a")).await.unwrap();
        there.wait_for(answer.position, LIMIT).await.unwrap();
        assert!(there.read(|bank| bank.accounts.contains_key("a")));
        let answer = there.submit(open_account("b")).await.unwrap();
        here.wait_for(answer.position, LIMIT).await.unwrap();
        assert_eq!(here.read(Bank::clone), there.read(Bank::clone));
    }
}

/// Waits until readers are known to see what there is.
fn follows(sequencer: &Sequencer<Bank>, long: Duration) {
    wait_for("readers see all there is", LIMIT, || {
        (sequencer.behind() < long).then_some(())
    })
    .unwrap();
}

#[test]
fn a_replica_knows_for_how_long_it_has_not_heard_of_the_ledger() {
    let mut server = PrivatePostgres::start().unwrap();
    let database = FreshDatabase::create_in(&server).unwrap();
    let (here, there) = (open(database.url()), open(database.url()));
    let (here, there) = (start(&here), start(&there));
    let runtime = Runtime::new().unwrap();
    let long = Duration::from_secs(2);
    follows(&here, long);
    // The control: others that write without a pause keep it from nothing.
    let busy = std::time::Instant::now();
    for mark in 1.. {
        let name = format!("n{mark}");
        runtime
            .block_on(there.submit(Job::Open { name, mark }))
            .unwrap();
        assert!(here.behind() < long, "{:?}", here.behind());
        if busy.elapsed() > long {
            break;
        }
    }
    server.stop().unwrap();
    wait_for("it has not heard for long", LIMIT, || {
        (here.behind() > long).then_some(())
    })
    .unwrap();
    let lag = Duration::from_micros(here.lag().percentile_99);
    assert!(lag > long / 2, "{lag:?}");
    server.resume().unwrap();
    follows(&here, long);
    server.stop().unwrap();
}

/// The database is put back to an earlier moment under a running replica.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_ledger_is_folded_anew() {
    let mut server = PrivatePostgres::start().unwrap();
    let database = FreshDatabase::create_in(&server).unwrap();
    let url = database.url().to_owned();
    let copy = format!("{}_before", database.name());
    let ledger = open(&url);
    let before = start(&ledger);
    before.submit(open_account("a")).await.unwrap();
    before.close();
    drop((before, ledger));
    let swap = |from: &str, to: &str| {
        let ended = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{from}'"
        );
        wait_for("the database can be copied", LIMIT, || {
            server.sql("postgres", &ended).unwrap();
            let drop = format!("DROP DATABASE IF EXISTS {to} WITH (FORCE)");
            server.sql("postgres", &drop).ok()?;
            let create = format!("CREATE DATABASE {to} TEMPLATE {from}");
            server.sql("postgres", &create).ok()
        })
        .unwrap();
    };
    swap(database.name(), &copy);

    let ledger = open(&url);
    let sequencer = start(&ledger);
    let lost = sequencer.submit(open_account("lost")).await.unwrap();
    assert_eq!(lost.position.seq, 2);
    swap(&copy, database.name());
    // Another event now stands where the lost one did.
    wait_for("another replica writes", LIMIT, || {
        let other = std::panic::catch_unwind(|| open(&url)).ok()?;
        let other = Sequencer::<Bank>::start(other, SequencerOptions::default()).ok()?;
        let runtime = tokio::runtime::Handle::current();
        let job = open_account("instead");
        let done = tokio::task::block_in_place(|| runtime.block_on(other.submit(job)));
        done.ok()
    })
    .unwrap();
    wait_for("the state is folded anew", LIMIT, || {
        sequencer.read(|bank| bank.accounts.contains_key("instead").then_some(()))
    })
    .unwrap();
    assert!(sequencer.read(|bank| !bank.accounts.contains_key("lost")));
    // Whoever was ahead outside goes by what is here now.
    let wanted = wait_for("there is a new epoch", LIMIT, || {
        (ledger.head().unwrap().epoch > lost.position.epoch).then_some(())
    });
    wanted.unwrap();
    let answer = sequencer.submit(open_account("lost")).await.unwrap();
    assert_eq!(answer.reply, Said::Done);
    assert_eq!(fold(&ledger), sequencer.read(Bank::clone));
    server.stop().unwrap();
}

#[test]
fn the_server_restarts_in_the_middle() {
    let mut server = PrivatePostgres::start().unwrap();
    let database = FreshDatabase::create_in(&server).unwrap();
    let ledgers: Vec<Ledger> = (0..2).map(|_| open(database.url())).collect();
    let sequencers: Vec<_> = ledgers.iter().map(start).collect();
    let answers: HashMap<_, _> = thread::scope(|scope| {
        let submit = |(seed, sequencer): (u64, &Sequencer<Bank>)| {
            let sequencer = sequencer.clone();
            scope.spawn(move || patient(&sequencer, seed, 150))
        };
        let threads: Vec<_> = (1..).zip(&sequencers).map(submit).collect();
        for _ in 0..3 {
            let before = ledgers[0].head().unwrap().seq;
            wait_for("something was appended", LIMIT, || {
                let head = ledgers[0].head().ok()?;
                (head.seq > before + 5 || threads.iter().all(|t| t.is_finished())).then_some(())
            })
            .unwrap();
            server.stop_immediately().unwrap();
            server.resume().unwrap();
        }
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    check(&ledgers[0], &answers);
}

/// Submits one job after the other; one that was not done is tried again.
fn patient(
    sequencer: &Sequencer<Bank>,
    seed: u64,
    jobs: u64,
) -> HashMap<u64, (Answer<Said>, bool)> {
    let runtime = Runtime::new().unwrap();
    let mut random = Random::new(seed);
    let mut answers = HashMap::new();
    for number in 0..jobs {
        let mark = seed * 1_000_000 + number + 1;
        let job = job(&mut random, mark);
        let looks = matches!(job, Job::Look { .. });
        loop {
            match runtime.block_on(sequencer.submit(job.clone())) {
                Ok(answer) => {
                    answers.insert(mark, (answer, looks));
                    break;
                }
                Err(SubmitError::Unavailable(_) | SubmitError::Busy) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    answers
}

/// The task of a child: `<seed> <address>`; says what was acknowledged.
fn as_child() -> bool {
    let Ok(task) = std::env::var(CHILD_ENV) else {
        return false;
    };
    let (seed, address) = task.split_once(' ').unwrap();
    let seed: u64 = seed.parse().unwrap();
    let sequencer = Arc::new(start(&open(address)));
    let work = |task: u64| {
        let sequencer = Arc::clone(&sequencer);
        thread::spawn(move || {
            let runtime = Runtime::new().unwrap();
            let mut random = Random::new(seed * 1_000 + task);
            for number in 0.. {
                let mark = (seed * 1_000 + task) * 1_000_000 + number + 1;
                let job = job(&mut random, mark);
                let answer = runtime.block_on(sequencer.submit(job)).unwrap();
                if answer.reply == Said::Done {
                    // One write per line: a killed process leaves no torn ones.
                    let line = format!("ACK {mark} {}\n", answer.position.seq);
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            }
        })
    };
    let threads: Vec<_> = (0..4).map(work).collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    true
}

fn start_child(test: &str, seed: u64, address: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD_ENV, format!("{seed} {address}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Kills a child after some acknowledgements, and gives all it made.
fn kill_after(child: &mut Child, enough: usize) -> Vec<(u64, u64)> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut acknowledged = Vec::new();
    for line in lines {
        let Ok(line) = line else { break };
        // The harness writes its own words before the first one.
        let Some((_, numbers)) = line.split_once("ACK ") else {
            continue;
        };
        let (mark, seq) = numbers.split_once(' ').unwrap();
        acknowledged.push((mark.parse().unwrap(), seq.parse().unwrap()));
        if acknowledged.len() == enough {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    acknowledged
}

fn killed_in_the_middle(test: &str, place: &Place) {
    let address = place.address();
    let mut random = Random::new(7);
    let mut acknowledged = Vec::new();
    for round in 1..=4 {
        let mut children = [1, 2].map(|child| start_child(test, round * 10 + child, &address));
        let enough = 1 + usize::try_from(random.below(15)).unwrap();
        thread::scope(|scope| {
            let kill = |child| scope.spawn(move || kill_after(child, enough));
            let threads: Vec<_> = children.iter_mut().map(kill).collect();
            for thread in threads {
                acknowledged.extend(thread.join().unwrap());
            }
        });
    }
    let ledger = open(&address);
    assert!(!acknowledged.is_empty());
    check(&ledger, &HashMap::new());
    for (acknowledged, seq) in acknowledged {
        let event = ledger.read(seq, 1).unwrap().remove(0);
        assert_eq!(mark(&event), acknowledged);
    }
    // The next one goes on where the killed ones were.
    let answers = submit_many(&start(&ledger), 99, 2, 10);
    check(&ledger, &answers);
}

#[test]
fn killed_processes_leave_a_file_whole() {
    if !as_child() {
        killed_in_the_middle("killed_processes_leave_a_file_whole", &Place::directory());
    }
}

#[test]
fn killed_processes_leave_a_database_whole() {
    if !as_child() {
        killed_in_the_middle(
            "killed_processes_leave_a_database_whole",
            &Place::database(),
        );
    }
}
