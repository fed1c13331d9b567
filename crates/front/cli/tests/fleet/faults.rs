//! Roll-outs through the faults of servers and database.
//!
//! In each the roll-out comes to its end, nothing is done twice, and every
//! server's views are what a rebuild gives.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use fluffy_api::Operation;
use fluffy_api::client::{Ask, CallError, Seen};
use fluffy_node_sim::Behaviour;
use fluffy_test_kit::{Seed, campaign};
use rustix::process::{Pid, Signal, kill_process};

use crate::kit::{ENV, Fleet, events, eventually};

const REPLICAS: u32 = 4;

/// What is done to servers and database in the middle of a roll-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The leader is killed.
    Kill,
    /// The database is stopped and started.
    Database,
    /// The leader stands still, and goes on when another one leads.
    Stop,
    /// No server wakes another one: every notification is lost.
    Deaf,
}

const FAULTS: [Fault; 4] = [Fault::Kill, Fault::Database, Fault::Stop, Fault::Deaf];

/// Slow enough that a roll-out has a middle.
fn slow() -> Behaviour {
    Behaviour {
        prepare_ms: 250,
        boot_ms: 250,
        ..Behaviour::default()
    }
}

async fn fleet() -> Fleet {
    let mut fleet = Fleet::start(3).await;
    for order in [[0, 1, 2], [1, 2, 0]] {
        fleet.join(&slow(), &order).await;
    }
    let first = fleet.deploy(0, "first", REPLICAS).await;
    fleet.succeeds(1, &first).await;
    fleet
}

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_end_well_whatever_happens_to_servers_and_database() {
    let seed = Seed::from_environment();
    let mut fleet = fleet().await;
    // Each fault once, then as many as a long run wants, in any order.
    let more = (0..campaign(0, 16)).map(|step| FAULTS[(seed.choice(step) % 4) as usize]);
    for (round, fault) in (1..).zip(FAULTS.into_iter().chain(more)) {
        let began = Instant::now();
        fleet.stay().await;
        suffer(&mut fleet, round, fault).await;
        fleet.check(REPLICAS as usize).await;
        let took = began.elapsed().as_secs();
        eprintln!("round {round}: {fault:?} took {took} s (seed {seed})");
    }
}

/// One roll-out with one fault in the middle.
async fn suffer(fleet: &mut Fleet, round: u32, fault: Fault) {
    let deaf = match fault {
        // While all is calm: a connection must not hold a lock when it stops.
        Fault::Deaf => stop_listening(fleet).await,
        _ => Vec::new(),
    };
    let leader = fleet.leader().await;
    let other = (leader + 1) % fleet.servers.len();
    let deploy = fleet.deploy(other, &format!("v{round}"), REPLICAS).await;
    fleet.middle(&deploy).await;
    match fault {
        Fault::Kill => fleet.servers[leader].kill(),
        Fault::Database => fleet.postgres.restart().unwrap(),
        Fault::Stop => fleet.servers[leader].signal(Signal::STOP),
        Fault::Deaf => {}
    }
    if fault == Fault::Stop {
        // Long enough for the others to take over, and in a long run for
        // everything else that may be given up meanwhile.
        tokio::time::sleep(Duration::from_secs(campaign(0, 30))).await;
        eventually("another one leads", async || {
            let now = fleet.leader_beside(leader).await;
            (now != leader).then_some(())
        })
        .await;
    }
    fleet.succeeds(other, &deploy).await;
    match fault {
        Fault::Kill => fleet.restart(leader, &[]),
        Fault::Stop => fleet.servers[leader].signal(Signal::CONT),
        Fault::Deaf => go_on(&deaf),
        Fault::Database => {}
    }
    for server in 0..fleet.servers.len() {
        fleet.succeeds(server, &deploy).await;
        assert_eq!(fleet.ready(server).await.len(), REPLICAS as usize);
    }
}

/// Has every connection stand still over which servers wake each other, and
/// look for news beside their own reading. Only while it waits for its server:
/// one that stopped with a lock would hold up the whole database.
async fn stop_listening(fleet: &Fleet) -> Vec<Pid> {
    let listening = "pid <> pg_backend_pid() AND datname = current_database() \
                     AND query = 'SELECT seq FROM ledger_head WHERE id = 1'";
    let waiting = "state = 'idle' AND wait_event = 'ClientRead'";
    let find = |condition: &str| {
        let sql = format!("SELECT pid FROM pg_stat_activity WHERE {condition}");
        let found = fleet.database.sql(&sql).unwrap();
        let found = found.lines().map(|line| line.trim().parse().unwrap());
        found.map(|pid| Pid::from_raw(pid).unwrap()).collect()
    };
    let mut stopped: Vec<Pid> = Vec::new();
    eventually("nobody hears anything", async || {
        let all: Vec<Pid> = find(listening);
        for pid in all.iter().filter(|pid| !stopped.contains(pid)) {
            kill_process(*pid, Signal::STOP).unwrap();
        }
        stopped = find(&format!("{listening} AND {waiting}"));
        let busy = all.iter().filter(|pid| !stopped.contains(pid));
        busy.for_each(|pid| kill_process(*pid, Signal::CONT).unwrap());
        (stopped.len() >= fleet.servers.len()).then_some(())
    })
    .await;
    stopped
}

fn go_on(stopped: &[Pid]) {
    for pid in stopped {
        // The server may have given it up meanwhile.
        let _ = kill_process(*pid, Signal::CONT);
    }
}

/// The database as it was at some time.
struct Backup(PathBuf);

impl Backup {
    fn take(fleet: &mut Fleet) -> Self {
        let (data, copy) = (data(fleet), data(fleet).with_extension("backup"));
        fleet.postgres.stop().unwrap();
        let _ = std::fs::remove_dir_all(&copy);
        copy_folder(&data, &copy);
        fleet.postgres.resume().unwrap();
        Self(copy)
    }

    fn put_back(&self, fleet: &mut Fleet) {
        let data = data(fleet);
        fleet.postgres.stop().unwrap();
        std::fs::remove_dir_all(&data).unwrap();
        copy_folder(&self.0, &data);
        fleet.postgres.resume().unwrap();
    }
}

fn data(fleet: &Fleet) -> PathBuf {
    let url = fleet.postgres.url();
    let folder = url.split_once("host=").unwrap().1;
    PathBuf::from(folder).join("data")
}

fn copy_folder(from: &PathBuf, to: &PathBuf) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restore_nodes_and_clients_go_by_the_new_epoch() {
    let mut fleet = fleet().await;
    // The servers run on and notice it themselves. What was half done in the
    // backup is done from there, although it had been done to its end.
    let half = fleet.deploy(0, "half", REPLICAS).await;
    fleet.middle(&half).await;
    let backup = Backup::take(&mut fleet);
    fleet.succeeds(0, &half).await;
    let seen = position(&fleet, 0).await;
    backup.put_back(&mut fleet);
    notice(&fleet, seen).await;
    fleet.succeeds(1, &half).await;
    was_in_flight(&fleet, &half).await;
    goes_on(&fleet, "second").await;

    // Nobody runs who could notice: who restores says so. What began after the
    // backup is not there any more, and who asks for it is told.
    let backup = Backup::take(&mut fleet);
    let lost = fleet.deploy(0, "lost", REPLICAS).await;
    fleet.middle(&lost).await;
    let seen = position(&fleet, 0).await;
    fleet.servers.iter_mut().for_each(crate::kit::Server::stop);
    backup.put_back(&mut fleet);
    fleet.restart(0, &["--restored"]);
    fleet.restart(1, &[]);
    fleet.restart(2, &[]);
    notice(&fleet, seen).await;
    for server in 0..fleet.servers.len() {
        is_gone(&fleet, server, &lost).await;
    }
    goes_on(&fleet, "third").await;
}

/// The restored ledger has a deploy that began before the restore and came to
/// its end after it.
async fn was_in_flight(fleet: &Fleet, deploy: &str) {
    let ledger = fleet.ledger().await;
    let (mut begun, mut restored, mut succeeded) = (None, None, None);
    for event in events(&ledger) {
        let place = match event.event_type.as_str() {
            "instance.allocated" if event.correlation_id.as_deref() == Some(deploy) => &mut begun,
            "ledger.restored" => &mut restored,
            "deploy.status_changed" if event.aggregate.id == deploy => {
                let payload = event.payload.value().unwrap();
                match payload["status"] == "succeeded" {
                    true => &mut succeeded,
                    false => continue,
                }
            }
            _ => continue,
        };
        place.get_or_insert(event.seq);
    }
    assert!(
        begun.is_some() && begun < restored,
        "{begun:?} {restored:?}"
    );
    assert!(restored < succeeded, "{restored:?} {succeeded:?}");
}

/// A server says that it knows of no such deploy.
async fn is_gone(fleet: &Fleet, server: usize, deploy: &str) {
    let path = [ENV[0], ENV[1], ENV[2], deploy];
    eventually("it says that it is gone", async || {
        let client = fleet.client(server).await.ok()?;
        match client.call(Ask::new(Operation::GetDeploy, &path)).await {
            Ok(answer) => panic!("{:?}", answer.value),
            Err(CallError::Refused(problem)) if problem.status == 404 => Some(()),
            Err(_) => None,
        }
    })
    .await;
}

async fn position(fleet: &Fleet, server: usize) -> Seen {
    let shown = fleet.read(server, Operation::GetProjections, &[]).await;
    Seen {
        epoch: shown["epoch"].as_u64().unwrap(),
        seq: shown["head_seq"].as_u64().unwrap(),
    }
}

/// Every server has a new epoch, and who has seen more than there is now goes
/// on.
async fn notice(fleet: &Fleet, seen: Seen) {
    for server in 0..fleet.servers.len() {
        eventually("the epoch is another", async || {
            let now = position(fleet, server).await;
            (now.epoch > seen.epoch).then_some(())
        })
        .await;
        let client = eventually("it answers", async || fleet.client(server).await.ok()).await;
        client.remember(seen);
        let ask = Ask::new(Operation::ListInstances, &ENV);
        client.call(ask).await.unwrap();
    }
}

/// Nodes run what the ledger says, and the next roll-out ends well.
async fn goes_on(fleet: &Fleet, version: &str) {
    let agree = async || {
        let mut running = std::collections::BTreeSet::new();
        for nodes in &fleet.nodes {
            let status = nodes.status().await;
            for (id, status) in status["instances"].as_object().unwrap() {
                running.insert((id.clone(), status.as_str().unwrap().to_owned()));
            }
        }
        let ready = fleet.ready(0).await;
        let ready = ready.into_iter().map(|id| (id, "ready".to_owned()));
        let is_whole = running.len() == REPLICAS as usize;
        (is_whole && running == ready.collect()).then_some(())
    };
    eventually("nodes run what the ledger says", agree).await;
    let deploy = fleet.deploy(1, version, REPLICAS).await;
    fleet.succeeds(2, &deploy).await;
    eventually("nodes run the next one", agree).await;
    fleet.check_ledger(REPLICAS as usize).await;
    fleet.check_views().await;
}
