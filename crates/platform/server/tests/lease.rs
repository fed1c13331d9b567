//! Leases: one leads, another takes over, and the one before is fenced off.
//!
//! The leader that is stopped or killed is this very binary, started again
//! with a task in its environment.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::print_stdout,
    missing_docs,
    reason = "tests"
)]

mod bank;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fluffy_server::aside::Aside;
use fluffy_server::loops::lease::{Leases, Term, Timing};
use fluffy_server::sequencer::Sequencer;
use fluffy_test_kit::{FreshDatabase, campaign};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use bank::{Bank, Job, Said, mark, open, start};

const LIMIT: Duration = Duration::from_secs(90);
/// How soon a killed leader is replaced: ten seconds, and two for a machine
/// that is busy.
const REPLACED: Duration = Duration::from_secs(12);
const CHILD_ENV: &str = "FLUFFY_LEASE_CHILD";
const LEASE: &str = "scheduler";
/// The mark of what the child writes.
const CHILD: u64 = 1;
/// The mark of what this process writes.
const PARENT: u64 = 2;

const QUICK: Timing = Timing {
    life: Duration::from_millis(800),
    renewal: Duration::from_millis(200),
    retry: Duration::from_millis(100),
};

async fn begin(sequencer: &Sequencer<Bank>, mark: u64) -> Option<u64> {
    let lease = LEASE.to_owned();
    let begun = sequencer.submit(Job::Begin { lease, mark }).await;
    match begun.ok()?.reply {
        Said::Term(term) => Some(term),
        _ => None,
    }
}

/// What a child does: leads, and writes on in its term whatever happens, as a
/// thread that hears of nothing would. `<fenced, free or real> <address>`, where
/// `real` is fenced and has the times of a server.
fn as_child() -> bool {
    let Ok(task) = std::env::var(CHILD_ENV) else {
        return false;
    };
    let (mode, address) = task.split_once(' ').unwrap();
    let timing = match mode {
        "real" => Timing::default(),
        _ => QUICK,
    };
    let (fenced, address) = (mode != "free", address.to_owned());
    Runtime::new().unwrap().block_on(async move {
        let sequencer = start(&open(&address));
        let aside = Aside::open_postgres(&address.parse().unwrap()).await;
        let leases = Leases::new(aside.unwrap(), "child").with_timing(timing);
        let writer = sequencer.clone();
        let work = move |fence: Term| {
            let writer = writer.clone();
            async move {
                tokio::spawn(write_on(writer, fence, fenced));
                std::future::pending().await
            }
        };
        leases.lead(LEASE, || begin(&sequencer, CHILD), work).await;
    });
    true
}

async fn write_on(sequencer: Sequencer<Bank>, fence: Term, fenced: bool) {
    for number in 0.. {
        let name = format!("child{}-{number}", fence.epoch);
        let job = match fenced {
            true => Job::Fenced {
                fence: fence.clone(),
                name,
                mark: CHILD,
            },
            false => Job::Open { name, mark: CHILD },
        };
        let said = match sequencer.submit(job).await {
            Ok(answer) => format!("{:?} {}\n", answer.reply, answer.position.seq),
            Err(error) => format!("failed {error}\n"),
        };
        std::io::stdout().lock().write_all(said.as_bytes()).unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A child, killed when this is dropped, and what it says.
struct Leader {
    child: Child,
    said: std::io::Lines<BufReader<ChildStdout>>,
}

impl Leader {
    fn start(test: &str, mode: &str, database: &FreshDatabase) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(CHILD_ENV, format!("{mode} {}", database.url()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut leader = Self { child, said };
        leader.hear("Done", 5);
        leader
    }

    /// Waits until it has said so a number of times.
    fn hear(&mut self, word: &str, times: usize) {
        let mut heard = 0;
        for line in &mut self.said {
            heard += usize::from(line.unwrap().contains(word));
            if heard == times {
                return;
            }
        }
        panic!("the leader ended");
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Leads in this process as soon as it can.
struct Successor {
    leading: tokio::task::JoinHandle<()>,
    term: tokio::sync::oneshot::Receiver<u64>,
}

fn succeed(runtime: &Runtime, database: &FreshDatabase, timing: Timing) -> Successor {
    let sequencer = start(&open(database.url()));
    let address = database.url().parse().unwrap();
    let aside = runtime.block_on(Aside::open_postgres(&address)).unwrap();
    let leases = Leases::new(aside, "parent").with_timing(timing);
    let (told, term) = tokio::sync::oneshot::channel();
    let told = Arc::new(Mutex::new(Some(told)));
    let leading = runtime.spawn(async move {
        let work = |fence: Term| {
            let told = Arc::clone(&told);
            async move {
                if let Some(told) = told.lock().unwrap().take() {
                    told.send(fence.epoch).unwrap();
                }
            }
        };
        leases.lead(LEASE, || begin(&sequencer, PARENT), work).await;
    });
    Successor { leading, term }
}

impl Successor {
    /// The number of its term once it leads.
    fn leads(self, runtime: &Runtime) -> u64 {
        let Self { leading, term } = self;
        let term = runtime.block_on(async { tokio::time::timeout(LIMIT, term).await });
        leading.abort();
        term.unwrap().unwrap()
    }
}

/// Stops the leader for longer than its lease, lets another take over, and
/// lets it go on. How many of its events came after the other's term began.
fn written_after_a_stop(test: &str, mode: &str, word: &str) -> usize {
    let database = FreshDatabase::create().unwrap();
    let runtime = Runtime::new().unwrap();
    let mut leader = Leader::start(test, mode, &database);
    leader.signal(Signal::STOP);
    let term = succeed(&runtime, &database, QUICK).leads(&runtime);
    assert!(term >= 2, "{term}");
    leader.signal(Signal::CONT);
    leader.hear(word, 5);
    drop(leader);
    let ledger = open(database.url());
    let mut events = Vec::new();
    loop {
        let page = ledger.read(events.len() as u64 + 1, 1_000).unwrap();
        if page.is_empty() {
            break;
        }
        events.extend(page);
    }
    let begun = events
        .iter()
        .position(|event| event.event_type == "lease.taken" && mark(event) == PARENT);
    let after = &events[begun.unwrap()..];
    // It may lead again, in a term of its own; what the stopped one wrote is
    // of its first.
    let of_first = |event: &&fluffy_ledger::Event| event.aggregate.id.starts_with("child1-");
    after.iter().filter(of_first).count()
}

#[test]
fn a_stopped_leader_writes_nothing_in_the_term_of_the_next() {
    if !as_child() {
        let test = "a_stopped_leader_writes_nothing_in_the_term_of_the_next";
        assert_eq!(written_after_a_stop(test, "fenced", "Refused"), 0);
    }
}

/// The control: the same without the fence.
#[test]
fn without_the_fence_a_stopped_leader_writes_on() {
    if !as_child() {
        let test = "without_the_fence_a_stopped_leader_writes_on";
        assert!(written_after_a_stop(test, "free", "Done") > 0);
    }
}

#[test]
fn a_killed_leader_is_replaced() {
    if as_child() {
        return;
    }
    let database = FreshDatabase::create().unwrap();
    let runtime = Runtime::new().unwrap();
    // Only a long run waits for a lease to end that is as long as a server's.
    let (mode, bar) = match campaign(0, 1) {
        0 => ("fenced", LIMIT),
        _ => ("real", REPLACED),
    };
    let mut leader = Leader::start("a_killed_leader_is_replaced", mode, &database);
    let next = succeed(&runtime, &database, Timing::default());
    let killed = Instant::now();
    leader.child.kill().unwrap();
    leader.child.wait().unwrap();
    let term = next.leads(&runtime);
    let took = killed.elapsed();
    assert!(term >= 2, "{term}");
    eprintln!(
        "{mode}: another one led {} ms after the kill",
        took.as_millis()
    );
    assert!(took < bar, "{took:?}");
}

/// Several in one process, on a file: never two at work in one term, and the
/// work of a replica that goes away is taken over.
#[tokio::test(flavor = "multi_thread")]
async fn one_at_a_time_leads() {
    let directory = TempDir::new().unwrap();
    let address = directory.path().join("ledger");
    let sequencer = start(&open(address.to_str().unwrap()));
    let aside = Aside::open(directory.path()).unwrap();
    let (working, terms) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    // However slow the machine, nobody loses a lease before giving it up.
    let timing = Timing {
        life: LIMIT,
        ..QUICK
    };
    let lead = |number: usize| {
        let (sequencer, working, terms) = (sequencer.clone(), working.clone(), terms.clone());
        let leases = Leases::new(aside.clone(), format!("replica{number}")).with_timing(timing);
        tokio::spawn(async move {
            let work = |_| {
                let (working, terms) = (working.clone(), terms.clone());
                async move {
                    assert_eq!(working.fetch_add(1, Ordering::SeqCst), 0);
                    terms.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(30)).await;
                    working.fetch_sub(1, Ordering::SeqCst);
                }
            };
            leases.lead(LEASE, || begin(&sequencer, PARENT), work).await;
        })
    };
    let replicas: Vec<_> = (0..4).map(lead).collect();
    let enough = Instant::now() + LIMIT;
    while terms.load(Ordering::SeqCst) < 8 {
        assert!(Instant::now() < enough && replicas.iter().all(|r| !r.is_finished()));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let counted = terms.load(Ordering::SeqCst) as u64;
    let last = sequencer.read(|bank| bank.terms.get(LEASE).copied().unwrap());
    assert!(last >= counted, "{last} {counted}");
    for replica in replicas {
        replica.abort();
    }
}
