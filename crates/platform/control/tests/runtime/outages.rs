//! Nodes that go in numbers, come back by another way, or never do.

use std::collections::BTreeMap;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_base::id::{InstanceId, NodeId};
use fluffy_control::Outcome;
use fluffy_control::runtime::Notice;
use fluffy_control::runtime::notice::{JobReport, Vital};
use fluffy_planner::lifecycle::{InstanceStatus, NodeState};
use serde_json::json;

use crate::world::{DATA, World};

const GIB: u64 = 1 << 30;

fn vital(silent: u64) -> Vital {
    Vital {
        silent: Duration::from_secs(silent),
        disk_percent: 10,
        unreachable: false,
        acknowledged: true,
        clock_off: Duration::ZERO,
        unfit: None,
    }
}

fn watch(world: &mut World, silent: u64) {
    let nodes: Vec<NodeId> = world.state.runtime.plan.nodes.keys().copied().collect();
    let vitals: BTreeMap<_, _> = nodes.into_iter().map(|id| (id, vital(silent))).collect();
    let done = world.say(Notice::Liveness(vitals));
    assert!(matches!(done, Outcome::Done { .. }), "{done:?}");
}

fn status(world: &World) -> serde_json::Value {
    world.get(Operation::GetVolume, &["local", "shop-dev-data"])["status"].clone()
}

#[test]
fn a_node_that_an_operator_brings_back_has_its_volumes_again() {
    let mut world = World::new("fd00::/48", 101);
    let node = world.node(1, 16 * GIB).to_string();
    let release = world.release(DATA);
    world.deploy(&release);
    world.settle();
    watch(&mut world, 60);
    assert_eq!(status(&world), "unavailable");
    world.done(Operation::DisableNode, &[&node], json!({}));
    watch(&mut world, 0);
    assert_eq!(status(&world), "unavailable", "nobody uses it yet");
    world.done(Operation::UncordonNode, &[&node], json!({}));
    // The control: by the word of an operator alone nothing is there again.
    watch(&mut world, 30);
    assert_eq!(status(&world), "unavailable");
    watch(&mut world, 0);
    assert_eq!(status(&world), "in_use");
    watch(&mut world, 0);
    assert_eq!(status(&world), "in_use");
    world.check_fold();
}

/// More is lost at once than an append holds.
#[test]
fn an_outage_of_many_nodes_is_recorded_in_several_passes() {
    const NODES: usize = 50;
    const EACH: usize = 250;
    let mut world = World::new("fd00::/48", 102);
    for number in 1..=NODES {
        world.node(number as u128, 64 * GIB);
    }
    let release = world.release(crate::world::WEB);
    world.deploy(&release);
    world.settle();
    let one = world.state.runtime.plan.instances.values().next();
    let one = one.unwrap().clone();
    let nodes: Vec<NodeId> = world.state.runtime.plan.nodes.keys().copied().collect();
    let plan = &mut world.state.runtime.plan;
    plan.instances.clear();
    for (number, node) in nodes.iter().cycle().take(NODES * EACH).enumerate() {
        let mut instance = one.clone();
        instance.node = *node;
        plan.instances
            .insert(InstanceId::from_bits(number as u128), instance);
    }
    let offline = |world: &World| {
        let nodes = world.state.runtime.plan.nodes.values();
        nodes.filter(|it| it.state == NodeState::Offline).count()
    };
    let mut passes = 0;
    while offline(&world) < NODES {
        let (before, many) = (world.events.len(), offline(&world));
        watch(&mut world, 60);
        let said = world.events.len() - before;
        assert!(said <= 2_000 + EACH, "{said} facts in one pass");
        // What is said of a node is said whole.
        assert_eq!(said, (offline(&world) - many) * (EACH + 1));
        passes += 1;
        assert!(passes < NODES, "it never ends");
    }
    assert!(passes > 1);
}

/// Nobody is left who could say how they ended.
#[test]
fn what_a_node_did_for_volumes_fails_with_it() {
    let mut world = World::new("fd00::/48", 103);
    let node = world.node(1, 16 * GIB);
    let release = world.release(DATA);
    world.deploy(&release);
    world.settle();
    let path = ["local", "shop-dev-data"];
    let mut snapshot = || {
        let made = world.done(Operation::CreateSnapshot, &path, json!({}));
        made["id"].as_str().unwrap().to_owned()
    };
    let (whole, queued, begun) = (snapshot(), snapshot(), snapshot());
    let succeeded = JobReport::Succeeded {
        size_bytes: Some(1),
        consistency: None,
    };
    for (id, report) in [(&whole, succeeded), (&begun, JobReport::Running)] {
        let snapshot = id.parse().unwrap();
        world.say(Notice::Snapshot {
            node,
            snapshot,
            report,
        });
    }
    let body = json!({"name": "copy"});
    let restore = world.done(Operation::RestoreSnapshot, &["local", &whole], body);
    let restore = restore["id"].as_str().unwrap().to_owned();
    let states = |world: &World| {
        let snapshots = &world.state.runtime.snapshots;
        let restores = &world.state.runtime.restores;
        let snapshot = |id: &String| snapshots[&id.parse().unwrap()].state.to_string();
        let restored = restores[&restore.parse().unwrap()].state.to_string();
        [
            snapshot(&whole),
            snapshot(&queued),
            snapshot(&begun),
            restored,
        ]
    };
    // The control: a node that is only silent may come back and go on.
    watch(&mut world, 60);
    world.say(Notice::Upkeep);
    let before = ["succeeded", "queued", "running", "queued"];
    assert_eq!(states(&world), before);
    world.done(Operation::RevokeNode, &[&node.to_string()], json!({}));
    world.say(Notice::Upkeep);
    assert_eq!(states(&world), ["succeeded", "failed", "failed", "failed"]);
    let copy = world.get(Operation::GetVolume, &["local", "copy"]);
    assert_eq!(copy["status"], "error");
    assert_eq!(copy["reason"], "node_lost");
    let shown = world.get(Operation::GetOperation, &["local", &restore]);
    assert_eq!(shown["status"], "failed");
    // Said once.
    let many = world.events.len();
    world.say(Notice::Upkeep);
    let again = world.events[many..].iter();
    assert!(
        !again
            .clone()
            .any(|event| event.event_type.ends_with("status_changed"))
    );
    for id in [&queued, &begun, &whole] {
        world.done(Operation::DeleteSnapshot, &["local", id], json!({}));
    }
    world.check_fold();
}

#[test]
fn a_snapshot_is_deleted_unless_somebody_is_at_it() {
    let mut world = World::new("fd00::/48", 104);
    let node = world.node(1, 16 * GIB);
    let body = json!({"name": "disk", "size_bytes": GIB});
    world.done(Operation::CreateVolume, &["local"], body);
    world.work();
    let make = |world: &mut World| {
        let made = world.done(Operation::CreateSnapshot, &["local", "disk"], json!({}));
        made["id"].as_str().unwrap().to_owned()
    };
    let succeed = |world: &mut World, id: &str| {
        let (snapshot, report) = (
            id.parse().unwrap(),
            JobReport::Succeeded {
                size_bytes: Some(1),
                consistency: None,
            },
        );
        world.say(Notice::Snapshot {
            node,
            snapshot,
            report,
        });
    };
    let backup = |world: &World| {
        let shown = world.get(Operation::GetVolume, &["local", "disk"]);
        shown["last_backup_at"].clone()
    };
    let org = world.state.runtime.orgs.keys().next().unwrap().to_string();
    let version = world.state.meta("org", &org).unwrap().version;
    let body = json!({"limits": {"snapshots_per_volume": 2}, "expected_version": version});
    world.done(Operation::SetQuotas, &["local"], body);
    let first = make(&mut world);
    succeed(&mut world, &first);
    let then = backup(&world);
    world.pass(60);
    let second = make(&mut world);
    let path = ["local", second.as_str()];
    let snapshot = second.parse().unwrap();
    let report = JobReport::Running;
    world.say(Notice::Snapshot {
        node,
        snapshot,
        report,
    });
    let refused = world.refused(Operation::DeleteSnapshot, &path, json!({}));
    assert_eq!(refused.code, "invalid_transition");
    succeed(&mut world, &second);
    assert_ne!(backup(&world), then);
    let body = json!({});
    let refused = world.refused(Operation::CreateSnapshot, &["local", "disk"], body.clone());
    assert_eq!(refused.code, "quota_exceeded");
    let copy = json!({"name": "copy"});
    let restore = world.done(Operation::RestoreSnapshot, &path, copy);
    let refused = world.refused(Operation::DeleteSnapshot, &path, json!({}));
    assert_eq!(refused.code, "invalid_transition");
    let restore = restore["id"].as_str().unwrap().parse().unwrap();
    let report = JobReport::Failed("download_failed".to_owned());
    world.say(Notice::Restore {
        node,
        restore,
        report,
    });
    let gone = world.done(Operation::DeleteSnapshot, &path, json!({}));
    assert_eq!(gone["deleted"], true);
    // The last good backup is the one that is left.
    assert_eq!(backup(&world), then);
    let refused = world.refused(Operation::DeleteSnapshot, &path, json!({}));
    assert_eq!(refused.code, "not_found");
    world.done(Operation::CreateSnapshot, &["local", "disk"], body);
    world.check_fold();
}

/// Nobody looks at the disk that was carried over, so nobody is told to give
/// up the node that had it.
#[test]
fn a_disk_changes_its_home_nowhere_yet() {
    let mut world = World::new("fd00::/48", 105);
    world.node(1, 32 * GIB);
    let other = world.node(2, 16 * GIB).to_string();
    let release = world.release(DATA);
    world.deploy(&release);
    world.settle();
    let volume = world
        .state
        .runtime
        .volumes
        .keys()
        .next()
        .unwrap()
        .to_string();
    let body = json!({ "node_id": other });
    let refused = world.refused(Operation::RehomeVolume, &[&volume], body);
    assert_eq!(refused.code, "fsck_failed");
    assert!(refused.why.contains("do not look"), "{refused:?}");
    let lost = InstanceStatus::Lost;
    let instances = world.state.runtime.plan.instances.values();
    assert!(instances.into_iter().all(|it| it.observed.status != lost));
}
