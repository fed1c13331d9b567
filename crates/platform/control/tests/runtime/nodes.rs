//! Nodes: joining, silence, drains, and reports that nobody can trust.

use std::collections::BTreeMap;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_base::id::{EnrollmentTokenId, NodeId};
use fluffy_control::Outcome;
use fluffy_control::event::NodeDriver;
use fluffy_control::runtime::Notice;
use fluffy_control::runtime::notice::Vital;
use fluffy_planner::lifecycle::{InstanceStatus, NodeState};
use serde_json::json;

use crate::world::{DATA, DEV, WEB, World, enrolment, report};

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

fn watch(world: &mut World, node: NodeId, vital: Vital) -> NodeState {
    world.say(Notice::Liveness(BTreeMap::from([(node, vital)])));
    world.state.runtime.plan.nodes[&node].state
}

#[test]
fn a_token_lets_one_machine_in() {
    let mut world = World::new("fd00::/48", 40);
    let made = world.done(Operation::CreateEnrollmentToken, &[], json!({}));
    let token = made["id"].as_str().unwrap().parse().unwrap();
    let join = |node: u128| {
        let node = NodeId::from_bits(node);
        Notice::Enroll(Box::new(enrolment(node, token)))
    };
    assert!(matches!(world.say(join(1)), Outcome::Done { .. }));
    let again = world.say(join(2));
    assert!(
        matches!(&again, Outcome::Refused(it) if it.code == "forbidden"),
        "{again:?}"
    );
    // The same machine with another token: the token is spent, no node comes.
    let made = world.done(Operation::CreateEnrollmentToken, &[], json!({}));
    let token = made["id"].as_str().unwrap().parse().unwrap();
    world.say(Notice::Enroll(Box::new(enrolment(
        NodeId::from_bits(1),
        token,
    ))));
    assert_eq!(world.state.runtime.nodes.len(), 1);
    let tokens = world.get(Operation::ListEnrollmentTokens, &[]);
    assert_eq!(tokens["items"][1]["status"], "consumed");
    let made = world.done(
        Operation::CreateEnrollmentToken,
        &[],
        json!({"ttl_seconds": 300}),
    );
    let token = made["id"].as_str().unwrap().parse().unwrap();
    world.pass(301);
    let late = world.say(Notice::Enroll(Box::new(enrolment(
        NodeId::from_bits(3),
        token,
    ))));
    assert!(matches!(&late, Outcome::Refused(it) if it.code == "forbidden"));
    // Unconfirmed for ten minutes, it is out.
    world.pass(600);
    let state = watch(&mut world, NodeId::from_bits(1), vital(0));
    assert_eq!(state, NodeState::Revoked);
    world.check_fold();
}

#[test]
fn who_was_here_before_needs_a_token_that_says_so() {
    let mut world = World::new("fd00::/48", 40);
    let token = |world: &mut World, body| -> EnrollmentTokenId {
        let made = world.done(Operation::CreateEnrollmentToken, &[], body);
        made["id"].as_str().unwrap().parse().unwrap()
    };
    let join = |world: &mut World, node: u128, token, former: Option<u128>| {
        let mut it = enrolment(NodeId::from_bits(node), token);
        it.machine = Some("this machine".to_owned());
        it.former = former.map(NodeId::from_bits);
        match world.say(Notice::Enroll(Box::new(it))) {
            Outcome::Done { subject, .. } => subject.kind,
            other => panic!("{other:?}"),
        }
    };
    let first = token(&mut world, json!({}));
    assert_eq!(join(&mut world, 1, first, None), "node");
    world.say(Notice::Confirm {
        node: NodeId::from_bits(1),
    });
    // The same machine, whether it says so or not; each time a token is spent.
    for (node, former) in [(2, None), (3, Some(1))] {
        let spent = token(&mut world, json!({}));
        assert_eq!(join(&mut world, node, spent, former), "refused");
        let record = &world.state.runtime.enrollment_tokens[&spent];
        assert_eq!(record.ended.as_deref(), Some("consumed"));
    }
    assert_eq!(world.state.runtime.nodes.len(), 1);
    let old = NodeId::from_bits(1).to_string();
    let named = token(&mut world, json!({"replaces": old}));
    assert_eq!(join(&mut world, 4, named, Some(1)), "node");
    let state = |node| world.state.runtime.plan.nodes[&NodeId::from_bits(node)].state;
    assert_eq!(state(1), NodeState::Revoked, "the old one is shut out");
    assert_eq!(state(4), NodeState::Enrolled);
    let nobody = NodeId::from_bits(9).to_string();
    let refused = world.refused(
        Operation::CreateEnrollmentToken,
        &[],
        json!({"replaces": nobody}),
    );
    assert_eq!(refused.code, "invalid_argument");
    world.check_fold();
}

#[test]
fn where_no_addresses_are_left_no_node_comes() {
    let mut world = World::new("fd00::/48", 49);
    world.node(1, 16 * GIB);
    let made = world.done(Operation::CreateEnrollmentToken, &[], json!({}));
    let token: EnrollmentTokenId = made["id"].as_str().unwrap().parse().unwrap();
    let join = |world: &mut World| {
        let node = NodeId::from_bits(2);
        world.say(Notice::Enroll(Box::new(enrolment(node, token))))
    };
    // Every range that the prefix has is taken, one after the other from here.
    let before = world.state.runtime.ipam.nodes.clone();
    let first = before.addresses().next().unwrap();
    let taken: BTreeMap<String, ()> = (0..1_u128 << 16)
        .map(|index| ((first + (index << 64)).to_string(), ()))
        .collect();
    let book = json!({"taken": taken, "resting": {}, "queue": []});
    world.state.runtime.ipam.nodes = serde_json::from_value(book).unwrap();
    let refused = join(&mut world);
    assert!(
        matches!(&refused, Outcome::Refused(it) if it.code == "ipam_unavailable"),
        "{refused:?}"
    );
    assert_eq!(world.state.runtime.nodes.len(), 1);
    let record = &world.state.runtime.enrollment_tokens[&token];
    assert_eq!(record.ended, None, "the token is still good");
    // The control: with a range it is let in.
    world.state.runtime.ipam.nodes = before;
    assert!(matches!(join(&mut world), Outcome::Done { .. }));
    world.check_fold();
}

#[test]
fn a_clock_that_is_off_and_a_machine_that_lacks_something_keep_instances_away() {
    let mut world = World::new("fd00::/48", 45);
    let node = world.node(1, 16 * GIB);
    let off = |seconds| Vital {
        clock_off: Duration::from_secs(seconds),
        ..vital(0)
    };
    assert_eq!(watch(&mut world, node, off(300)), NodeState::Active);
    assert_eq!(watch(&mut world, node, off(301)), NodeState::Degraded);
    let reason = |world: &World| world.state.runtime.nodes[&node].reason.clone();
    assert_eq!(reason(&world).as_deref(), Some("clock_skew"));
    assert_eq!(watch(&mut world, node, vital(0)), NodeState::Active);
    let unfit = Vital {
        unfit: Some("cgroups".to_owned()),
        ..vital(0)
    };
    assert_eq!(watch(&mut world, node, unfit), NodeState::Degraded);
    assert_eq!(reason(&world).as_deref(), Some("doctor_failed: cgroups"));
    assert_eq!(watch(&mut world, node, vital(0)), NodeState::Active);
    world.check_fold();
}

#[test]
fn a_node_that_fails_instances_of_several_groups_is_degraded_for_a_while() {
    let mut world = World::new("fd00::/48", 50);
    let node = world.node(1, 16 * GIB);
    let both = format!("{WEB}[processes.job]\nresources = {{ memory = \"64MiB\" }}\n");
    let release = world.release(&both);
    world.deploy(&release);
    world.settle();
    let fail = |world: &mut World, process: &str, reason: &str| {
        let mut all = world.state.runtime.plan.instances.iter();
        let found = all.find(|(_, it)| &*it.group.process == process);
        let id = *found.unwrap().0;
        for status in [
            InstanceStatus::Failed,
            InstanceStatus::Booting,
            InstanceStatus::Ready,
        ] {
            let mut said = report(id, status, world.now);
            let failed = status == InstanceStatus::Failed;
            said.reason_code = failed.then(|| reason.to_owned());
            let reports = vec![said];
            world.say(Notice::Reports { node, reports });
        }
        // More in a minute would be flapping.
        world.pass(61);
    };
    let host = "guest_unresponsive";
    let reason = |world: &World| world.state.runtime.nodes[&node].reason.clone();
    for _ in 0..3 {
        fail(&mut world, "web", host);
    }
    let state = watch(&mut world, node, vital(0));
    assert_eq!(state, NodeState::Active, "one group says nothing of a node");
    fail(&mut world, "job", "workload_exited");
    let state = watch(&mut world, node, vital(0));
    assert_eq!(state, NodeState::Active, "nor does what is the app's own");
    fail(&mut world, "job", host);
    assert_eq!(watch(&mut world, node, vital(0)), NodeState::Degraded);
    assert_eq!(reason(&world).as_deref(), Some("host_failures"));
    // Ten minutes later nothing of it counts.
    world.pass(600);
    assert_eq!(watch(&mut world, node, vital(0)), NodeState::Active);
    fail(&mut world, "web", host);
    fail(&mut world, "job", host);
    let state = watch(&mut world, node, vital(0));
    assert_eq!(state, NodeState::Active, "two are not many");
    fail(&mut world, "web", host);
    assert_eq!(watch(&mut world, node, vital(0)), NodeState::Degraded);
    world.check_fold();
}

#[test]
fn what_a_node_can_is_taken_at_each_session() {
    let mut world = World::new("fd00::/48", 46);
    let node = world.node(1, 16 * GIB);
    let before = world.state.runtime.nodes[&node].clone();
    let facts = |drivers: &[NodeDriver], version: &str| Notice::Facts {
        node,
        drivers: drivers.to_vec(),
        agent_version: version.to_owned(),
    };
    let seq = world.state.seq;
    world.say(facts(&before.drivers, &before.agent_version));
    assert_eq!(world.state.seq, seq, "nothing new is no event");
    world.say(facts(&[], "9.9.9"));
    let shown = world.get(Operation::GetNode, &[&node.to_string()]);
    assert_eq!(shown["agent_version"], "9.9.9");
    assert_eq!(shown["drivers"], json!([]));
    assert!(world.state.runtime.plan.nodes[&node].drivers.is_empty());
    let capacity = &world.state.runtime.plan.nodes[&node].capacity;
    assert_eq!(capacity.memory, 16 * GIB, "the rest is as before");
    world.check_fold();
}

#[test]
fn a_plan_that_is_held_is_shown_and_goes_on_once_somebody_says_so() {
    let mut world = World::new("fd00::/48", 47);
    let node = world.node(1, 16 * GIB);
    let id = node.to_string();
    let held = |held: Option<&str>| Notice::PlanHeld {
        node,
        held: held.map(str::to_owned),
    };
    // A word too many confirms nothing.
    world.done(Operation::ConfirmNodePlan, &[&id], json!({}));
    world.say(held(Some("the plan leaves out 5 of 6 instances")));
    let shown = world.get(Operation::GetNode, &[&id]);
    assert_eq!(shown["plan_held"], "the plan leaves out 5 of 6 instances");
    assert_eq!(shown["reason"], "plan_held");
    let confirmed = |world: &World| world.state.runtime.nodes[&node].held.clone();
    assert!(!confirmed(&world).unwrap().1);
    world.done(Operation::ConfirmNodePlan, &[&id], json!({}));
    assert!(confirmed(&world).unwrap().1);
    world.say(held(None));
    assert_eq!(confirmed(&world), None);
    let shown = world.get(Operation::GetNode, &[&id]);
    assert!(shown["plan_held"].is_null() && shown["reason"].is_null());
    world.check_fold();
}

#[test]
fn a_silent_node_is_degraded_then_offline_and_comes_back() {
    let mut world = World::new("fd00::/48", 41);
    let node = world.node(1, 16 * GIB);
    let release = world.release(DATA);
    world.deploy(&release);
    world.settle();
    assert_eq!(watch(&mut world, node, vital(19)), NodeState::Active);
    assert_eq!(watch(&mut world, node, vital(20)), NodeState::Degraded);
    assert_eq!(watch(&mut world, node, vital(0)), NodeState::Active);
    let full = Vital {
        disk_percent: 90,
        ..vital(0)
    };
    assert_eq!(watch(&mut world, node, full), NodeState::Degraded);
    assert_eq!(watch(&mut world, node, vital(60)), NodeState::Offline);
    let volume = world.get(Operation::GetVolume, &["local", "shop-dev-data"]);
    assert_eq!(volume["status"], "unavailable");
    world.settle();
    let shown = world.get(Operation::GetStatus, &DEV);
    assert_eq!(shown["status"], "degraded");
    assert_eq!(
        shown["conditions"][0]["condition"],
        "volume_home_node_offline"
    );
    assert_eq!(
        world.state.runtime.plan.instances.len(),
        1,
        "data is waited for"
    );
    let deaf = Vital {
        acknowledged: false,
        ..vital(0)
    };
    assert_eq!(watch(&mut world, node, deaf), NodeState::Offline);
    assert_eq!(
        watch(&mut world, node, vital(0)),
        NodeState::Degraded,
        "as it was"
    );
    let volume = world.get(Operation::GetVolume, &["local", "shop-dev-data"]);
    assert_eq!(volume["status"], "in_use");
    let instance = *world.state.runtime.plan.instances.keys().next().unwrap();
    let reports = vec![report(instance, InstanceStatus::Ready, world.now)];
    world.say(Notice::Reports { node, reports });
    world.settle();
    assert_eq!(world.get(Operation::GetStatus, &DEV)["status"], "healthy");
    world.check_fold();
}

#[test]
fn what_a_lost_node_had_is_replaced_and_does_not_come_back() {
    let mut world = World::new("fd00::/48", 42);
    let (one, two) = (world.node(1, 16 * GIB), world.node(2, 16 * GIB));
    let release = world.release(WEB);
    world.deploy(&release);
    world.settle();
    let (lost, node) = {
        let (id, it) = world.state.runtime.plan.instances.iter().next().unwrap();
        (*id, it.node)
    };
    let other = if node == one { two } else { one };
    watch(&mut world, node, vital(60));
    world.settle();
    let now = &world.state.runtime.plan.instances;
    assert!(now.iter().any(|(id, it)| *id != lost && it.node == other));
    watch(&mut world, node, vital(0));
    let before = world.events.len();
    let reports = vec![report(lost, InstanceStatus::Ready, world.now)];
    world.say(Notice::Reports { node, reports });
    assert_eq!(world.events.len(), before, "it was given up");
    world.settle();
    assert!(!world.state.runtime.plan.instances.contains_key(&lost));
    world.check_fold();
}

#[test]
fn reports_twice_late_or_of_others_change_nothing() {
    let mut world = World::new("fd00::/48", 43);
    let (one, two) = (world.node(1, 16 * GIB), world.node(2, 16 * GIB));
    let release = world.release(WEB);
    world.deploy(&release);
    world.settle();
    let (id, node) = {
        let (id, it) = world.state.runtime.plan.instances.iter().next().unwrap();
        (*id, it.node)
    };
    let other = if node == one { two } else { one };
    let before = world.events.len();
    let failed = vec![report(id, InstanceStatus::Failed, world.now)];
    world.say(Notice::Reports {
        node: other,
        reports: failed,
    });
    for status in [
        InstanceStatus::Ready,
        InstanceStatus::Preparing,
        InstanceStatus::Allocated,
    ] {
        let reports = vec![report(id, status, world.now)];
        world.say(Notice::Reports { node, reports });
    }
    assert_eq!(world.events.len(), before);
    let stranger = NodeId::from_bits(99);
    let reports = vec![report(id, InstanceStatus::Failed, world.now)];
    let refused = world.say(Notice::Reports {
        node: stranger,
        reports,
    });
    assert!(matches!(refused, Outcome::Refused(_)));
    world.done(Operation::RevokeNode, &[&node.to_string()], json!({}));
    let reports = vec![report(id, InstanceStatus::Failed, world.now)];
    let refused = world.say(Notice::Reports { node, reports });
    assert!(matches!(&refused, Outcome::Refused(it) if it.code == "forbidden"));
    world.settle();
    world.say(Notice::Upkeep);
    assert!(
        !world.state.runtime.plan.instances.contains_key(&id),
        "it is reclaimed"
    );
    let shown = world.get(Operation::GetStatus, &DEV);
    assert_eq!(shown["status"], "healthy");
    world.check_fold();
}

#[test]
fn an_instance_that_flaps_is_recorded_now_and_then() {
    let mut world = World::new("fd00::/48", 44);
    let node = world.node(1, 16 * GIB);
    let release = world.release(WEB);
    world.deploy(&release);
    world.settle();
    world.pass(120);
    let id = *world.state.runtime.plan.instances.keys().next().unwrap();
    let before = world.events.len();
    let mut held = 0;
    for turn in 0..20 {
        let status = match turn % 2 {
            0 => InstanceStatus::Unhealthy,
            _ => InstanceStatus::Ready,
        };
        let reports = vec![report(id, status, world.now)];
        let Outcome::Done { subject, .. } = world.say(Notice::Reports { node, reports }) else {
            panic!("a report is taken");
        };
        held += usize::from(subject.details.contains_key("held"));
        world.pass(1);
    }
    assert_eq!(world.events.len() - before, 6);
    assert!(held > 0);
    world.pass(60);
    let mut last = report(id, InstanceStatus::Unhealthy, world.now);
    last.flap_count = Some(14);
    world.say(Notice::Reports {
        node,
        reports: vec![last],
    });
    let event = world.events.last().unwrap();
    assert!(event.payload.as_str().contains("\"flap_count\":14"));
}

#[test]
fn a_drain_moves_what_can_move_and_names_what_cannot() {
    let mut world = World::new("fd00::/48", 45);
    let node = world.node(1, 16 * GIB);
    let both = format!("{DATA}[processes.web]\nresources = {{ memory = \"128MiB\" }}\n");
    let both = both.replace(
        "[[volumes]]",
        "[processes.web]\nresources = { memory = \"128MiB\" }\n[[volumes]]",
    );
    let both = both
        .split("[processes.web]")
        .take(2)
        .collect::<Vec<_>>()
        .join("[processes.web]");
    let release = world.release(&both);
    world.deploy(&release);
    world.settle();
    world.node(2, 16 * GIB);
    let id = node.to_string();
    let operation = world.done(Operation::DrainNode, &[&id], json!({}));
    let drain = operation["id"].as_str().unwrap().to_owned();
    assert_eq!(operation["progress"], json!({"done": 0, "total": 2}));
    world.settle();
    let shown = world.get(Operation::GetPlatformOperation, &[&drain]);
    assert_eq!(shown["status"], "running");
    assert_eq!(shown["progress"], json!({"done": 1, "total": 2}));
    let blockers = shown["blockers"].as_array().unwrap();
    assert_eq!(blockers.len(), 1, "{shown}");
    assert_eq!(blockers[0]["reason"], "drain_blocked");
    let data = world.get(Operation::GetVolume, &["local", "shop-dev-data"]);
    assert_eq!(blockers[0]["volume_id"], data["id"], "{shown}");
    let here = world
        .state
        .runtime
        .plan
        .instances
        .values()
        .filter(|it| it.node == node);
    assert_eq!(here.count(), 1, "what has no data has moved");
    let refused = world.refused(Operation::RemoveNode, &[&id], json!({}));
    assert_eq!(refused.code, "invalid_transition");
    world.done(Operation::UncordonNode, &[&id], json!({}));
    let leave = json!({"leave_stateful": true});
    let operation = world.done(Operation::DrainNode, &[&id], leave);
    // What stays is not waited for.
    assert_eq!(operation["progress"], json!({"done": 0, "total": 0}));
    world.settle();
    assert_eq!(world.get(Operation::GetNode, &[&id])["status"], "drained");
    let refused = world.refused(Operation::RemoveNode, &[&id], json!({}));
    assert_eq!(refused.code, "node_has_volumes");
    let mut give_up = world.request(Operation::RemoveNode, &[&id], json!({}));
    give_up
        .query
        .insert("abandon_volumes".to_owned(), "true".to_owned());
    world.done_with(&give_up);
    world.settle();
    world.check_fold();
}

#[test]
fn a_lease_has_one_holder() {
    let mut world = World::new("fd00::/48", 46);
    let lease = |replica: &str| Notice::LeaderAcquired {
        lease: "scheduler".to_owned(),
        replica_id: replica.to_owned(),
    };
    world.say(lease("a"));
    world.say(lease("b"));
    assert_eq!(world.state.leases["scheduler"], 2);
}

#[test]
fn what_stops_before_it_booted_gives_its_volume_back() {
    let mut world = World::new("fd00::/48", 47);
    let node = world.node(1, 16 * GIB);
    let release = world.release(DATA);
    world.deploy(&release);
    world.plan();
    world.work();
    world.plan();
    let id = *world.state.runtime.plan.instances.keys().next().unwrap();
    let reports = vec![report(id, InstanceStatus::Preparing, world.now)];
    world.say(Notice::Reports { node, reports });
    let volume = world.get(Operation::GetVolume, &["local", "shop-dev-data"]);
    assert_eq!(volume["status"], "attaching");
    let reports = vec![report(id, InstanceStatus::Stopped, world.now)];
    world.say(Notice::Reports { node, reports });
    let volume = world.get(Operation::GetVolume, &["local", "shop-dev-data"]);
    assert_eq!(volume["status"], "available");
    world.check_fold();
}

#[test]
fn a_disk_moves_only_from_a_node_that_is_gone() {
    let mut world = World::new("fd00::/48", 48);
    let (old, new) = (world.node(1, 32 * GIB), world.node(2, 16 * GIB));
    let release = world.release(DATA);
    world.deploy(&release);
    world.settle();
    let volume = *world.state.runtime.volumes.keys().next().unwrap();
    let rehome = |world: &mut World, checked: &str| {
        let id = volume.to_string();
        let body = json!({"node_id": new.to_string()});
        let mut request = world.request(Operation::RehomeVolume, &[&id], body);
        request.material = fluffy_control::Material::Proof(checked.to_owned());
        match world.ask(&request) {
            Outcome::Refused(refusal) => refusal.code,
            Outcome::Done { .. } => "done",
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        rehome(&mut world, "clean"),
        "invalid_transition",
        "it is in use"
    );
    watch(&mut world, old, vital(60));
    assert_eq!(
        rehome(&mut world, "clean"),
        "invalid_transition",
        "it may still write"
    );
    world.done(Operation::RevokeNode, &[&old.to_string()], json!({}));
    assert_eq!(rehome(&mut world, "errors"), "fsck_failed");
    // Its answer names an operation, which was none before.
    let look = |world: &World| world.look(Operation::GetPlatformOperation, &[&volume.to_string()]);
    assert_eq!(look(&world).unwrap_err().code, "not_found");
    assert_eq!(rehome(&mut world, "clean"), "done");
    let shown = look(&world).unwrap();
    assert_eq!(
        (&shown["kind"], &shown["status"]),
        (&json!("rehome"), &json!("succeeded"))
    );
    world.settle();
    let shown = world.get(Operation::GetStatus, &DEV);
    assert_eq!(shown["status"], "healthy", "{shown}");
    let instances = world.state.runtime.plan.instances.values();
    let here = instances.filter(|it| it.node == new && it.is_wanted());
    assert_eq!(here.count(), 1);
    world.check_fold();
}
