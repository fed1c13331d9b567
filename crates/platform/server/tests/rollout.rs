//! Three replicas over one database, and their leader killed in a roll-out.
//!
//! The replicas are this very binary, started again with a task in its
//! environment; this process is the owner and the nodes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs,
    reason = "tests"
)]

mod crew;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fluffy_base::id::DeployId;
use fluffy_control::State;
use fluffy_ledger::{Event, Ledger, LedgerOptions};
use fluffy_planner::lifecycle::{DeployState, InstanceStatus};
use fluffy_server::loops::lease::Timing;
use fluffy_server::platform::{Founder, Platform, Storage};
use fluffy_server::server::{Options, Server};
use fluffy_test_kit::FreshDatabase;
use serde_json::Value;
use tokio::runtime::Runtime;

use crew::Crew;

const CHILD_ENV: &str = "FLUFFY_ROLLOUT_CHILD";
const TEST: &str = "a_rollout_ends_well_though_its_leader_is_killed_in_the_middle";
const REPLICAS: usize = 6;

fn storage(url: &str) -> Storage {
    Storage::database(url.parse().unwrap())
}

/// A whole replica, until it is killed.
fn as_child() -> bool {
    let Ok(url) = std::env::var(CHILD_ENV) else {
        return false;
    };
    Runtime::new().unwrap().block_on(async {
        let options = Options {
            storage: storage(&url),
            ledger: LedgerOptions::default(),
            founder: Founder::Local,
            timing: Timing {
                life: Duration::from_secs(2),
                renewal: Duration::from_millis(400),
                retry: Duration::from_millis(100),
            },
        };
        let server = Server::start(options).await.unwrap();
        let said = format!("REPLICA {}\n", server.platform().replica());
        std::io::stdout().lock().write_all(said.as_bytes()).unwrap();
        // Ends with the process that started it, or by its hand.
        let ended = tokio::task::spawn_blocking(|| std::io::stdin().lines().count());
        ended.await.unwrap();
    });
    true
}

/// A replica in a process of its own, killed when this is dropped.
struct Replica {
    child: Child,
    name: String,
}

impl Replica {
    fn start(url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(CHILD_ENV, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let name = said.find_map(|line| {
            let line = line.unwrap();
            line.split_once("REPLICA ").map(|(_, name)| name.to_owned())
        });
        let name = name.unwrap();
        Self { child, name }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn events(ledger: &Ledger) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    loop {
        let page = ledger.read(events.len() as u64 + 1, 1_000).unwrap();
        if page.is_empty() {
            return events;
        }
        events.extend(page);
    }
}

/// The terms of the scheduler: who led from which event on.
fn terms(events: &[Event]) -> Vec<(u64, u64, String)> {
    let taken = events
        .iter()
        .filter(|event| event.event_type == "leader.acquired" && event.aggregate.id == "scheduler");
    let term = |event: &Event| {
        let payload = event.payload.value().unwrap();
        let replica = payload["replica_id"].as_str().unwrap().to_owned();
        (event.seq, payload["epoch"].as_u64().unwrap(), replica)
    };
    taken.map(term).collect()
}

fn has_succeeded(state: &State, deploy: DeployId) -> Option<()> {
    let deploy = state.runtime.plan.deploys.get(&deploy);
    // One that is final may have left the planner's view.
    deploy
        .is_none_or(|deploy| deploy.state == DeployState::Succeeded)
        .then_some(())
}

/// New ones run and old ones still do.
fn is_in_the_middle(state: &State, release: &str) -> Option<()> {
    let of_release = |new: bool| {
        let runtime = &state.runtime;
        runtime.plan.instances.iter().any(|(id, instance)| {
            let is_new = runtime.instances[id].release.to_string() == release;
            instance.observed.status == InstanceStatus::Ready && is_new == new
        })
    };
    (of_release(true) && of_release(false)).then_some(())
}

/// At no time were there more instances than the roll-out may have, and no
/// two had one address.
fn check(events: &[Event], most: usize) {
    let mut live: BTreeMap<String, Value> = BTreeMap::new();
    let mut allocated = 0;
    for event in events {
        let payload = event.payload.value().unwrap();
        match event.event_type.as_str() {
            "instance.allocated" => {
                allocated += 1;
                let address = payload["overlay_ipv6"].clone();
                assert!(!live.values().any(|taken| *taken == address), "{address}");
                live.insert(event.aggregate.id.clone(), address);
            }
            "instance.status_changed" if payload["status"] == "stopped" => {
                live.remove(&event.aggregate.id);
            }
            _ => {}
        }
        assert!(live.len() <= most, "{} at event {}", live.len(), event.seq);
    }
    assert!(allocated > 2 * REPLICAS);
    assert_eq!(live.len(), REPLICAS);
}

#[test]
fn a_rollout_ends_well_though_its_leader_is_killed_in_the_middle() {
    if as_child() {
        return;
    }
    let database = FreshDatabase::create().unwrap();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let platform = Platform::open(&storage(database.url()), LedgerOptions::default())
            .await
            .unwrap();
        platform.begin(Founder::Local).await.unwrap();
        let crew = Crew { platform };
        let mut replicas: Vec<_> = (0..3).map(|_| Replica::start(database.url())).collect();
        for number in 1..=3 {
            crew.join(number).await;
        }
        crew.app("shop").await;
        let mut killed = BTreeSet::new();
        for round in 0..3 {
            let release = crew.release("shop", &format!("v{round}"), 6).await;
            let deploy: DeployId = crew.deploy("shop", &release).await.parse().unwrap();
            if round > 0 {
                let middle = |state: &State| is_in_the_middle(state, &release);
                crew.tend_until("the middle", middle).await;
                let (_, _, leader) = terms(&events(crew.platform.ledger())).pop().unwrap();
                let dead = replicas.iter().position(|replica| replica.name == leader);
                drop(replicas.remove(dead.unwrap()));
                killed.insert(leader);
            }
            crew.tend_until("the end", |state| has_succeeded(state, deploy))
                .await;
        }
        assert_eq!(killed.len(), 2);
        let events = events(crew.platform.ledger());
        check(&events, REPLICAS + 1);
        let terms = terms(&events);
        let numbers: Vec<u64> = terms.iter().map(|(_, epoch, _)| *epoch).collect();
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
        assert!(!killed.contains(&terms.last().unwrap().2));
        let rebuilt = crew.platform.rebuild(false).await.unwrap();
        assert_eq!(rebuilt.differ, Vec::<&str>::new());
    });
}
