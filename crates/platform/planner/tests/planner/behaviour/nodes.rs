//! Nodes that are drained, lost, disabled or bad.

use fluffy_planner::action::Action;
use fluffy_planner::lifecycle::{InstanceStatus, NodeState, VolumeState};
use fluffy_planner::model::{Desired, Drain, Stateful};
use fluffy_planner::reason::{Condition, DrainReason, FailureReason, StopReason};
use fluffy_planner::{EDGE_PATIENCE, MOVES, MOVING_GROUPS};

use super::desk::Desk;
use crate::ground::{
    add_group, add_stateful, at, cluster, group_id, node_id, options, release_id, spec,
};

fn drain(desk: &mut Desk, node: u128, deadline: i64, stateful: Stateful) {
    let node = desk.state().nodes.get_mut(&node_id(node)).unwrap();
    node.state = NodeState::Draining;
    node.drain = Some(Drain {
        deadline: at(deadline),
        stateful,
        blockers: Default::default(),
    });
}

fn state_of(desk: &Desk, node: u128) -> NodeState {
    desk.server.state.nodes[&node_id(node)].state
}

#[test]
fn a_drain_moves_what_can_move_without_a_gap() {
    let web = group_id(1, "web");
    let mut state = cluster(&[16, 16, 16]);
    add_group(&mut state, &web, 3);
    let mut desk = Desk::new(state);
    desk.run(12);
    desk.watch(&web);
    drain(&mut desk, 1, 1_000, Stateful::Blocks);
    desk.run(40);
    assert_eq!(state_of(&desk, 1), NodeState::Drained);
    assert_eq!(desk.available(&web), 3);
    let (_, fewest, most) = desk.watched.clone().unwrap();
    assert_eq!((fewest, most), (3, 4));
}

#[test]
fn data_blocks_a_drain_and_is_never_moved() {
    let data = group_id(1, "data");
    for (stateful, end) in [
        (Stateful::Blocks, NodeState::Draining),
        (Stateful::Stays, NodeState::Drained),
    ] {
        let mut state = cluster(&[16, 16]);
        add_stateful(&mut state, &data, 1, 1);
        let mut desk = Desk::new(state);
        desk.run(12);
        let (id, _) = desk.members(&data)[0];
        drain(&mut desk, 1, 20, stateful);
        desk.run(60);
        assert_eq!(desk.nodes(&data), [1]);
        assert!(desk.server.state.instances[&id].is_wanted());
        assert_eq!(state_of(&desk, 1), end);
        let drain = desk.server.state.nodes[&node_id(1)].drain.clone().unwrap();
        assert_eq!(drain.blockers.contains(&id), stateful == Stateful::Blocks);
    }
}

#[test]
fn without_room_elsewhere_an_instance_stays_until_the_deadline() {
    let web = group_id(1, "web");
    let mut state = cluster(&[2, 1]);
    add_group(&mut state, &web, 2);
    let mut desk = Desk::new(state);
    desk.run(12);
    drain(&mut desk, 1, 100, Stateful::Blocks);
    desk.run(60);
    assert_eq!(desk.available(&web), 2);
    assert_eq!(desk.conditions(&web), [Condition::NoCapacityMemory]);
    desk.run(60);
    assert_eq!(desk.members(&web).len(), 0);
    assert_eq!(state_of(&desk, 1), NodeState::Drained);
}

#[test]
fn five_groups_move_at_a_time() {
    let mut state = cluster(&[64, 64]);
    let groups: Vec<_> = (0..12)
        .map(|number| group_id(1, &format!("g{number:02}")))
        .collect();
    for group in &groups {
        add_group(&mut state, group, 1);
    }
    state.nodes.get_mut(&node_id(2)).unwrap().state = NodeState::Degraded;
    let mut desk = Desk::new(state);
    desk.run(12);
    assert_eq!(
        groups
            .iter()
            .flat_map(|group| desk.nodes(group))
            .sum::<u128>(),
        12
    );
    desk.state().nodes.get_mut(&node_id(2)).unwrap().state = NodeState::Active;
    drain(&mut desk, 1, 10_000, Stateful::Blocks);
    let mut most = 0;
    for _ in 0..120 {
        desk.run(1);
        let moving = groups.iter().filter(|group| desk.live(group).len() > 1);
        most = most.max(moving.count());
    }
    assert_eq!(most, MOVING_GROUPS);
    assert_eq!(state_of(&desk, 1), NodeState::Drained);
    assert_eq!(
        groups
            .iter()
            .flat_map(|group| desk.nodes(group))
            .sum::<u128>(),
        24
    );
}

#[test]
fn five_groups_that_do_not_come_up_keep_nobody_else_on_a_node() {
    for crashes in [false, true] {
        let mut state = cluster(&[64, 64]);
        let groups: Vec<_> = (0..6)
            .map(|number| group_id(1, &format!("g{number}")))
            .collect();
        for (release, group) in (1..).zip(&groups) {
            add_group(&mut state, group, 1);
            state.groups.get_mut(group).unwrap().spec = spec(group, release);
        }
        state.nodes.get_mut(&node_id(2)).unwrap().state = NodeState::Degraded;
        let mut desk = Desk::new(state);
        desk.run(12);
        desk.state().nodes.get_mut(&node_id(2)).unwrap().state = NodeState::Active;
        let (good, broken) = groups.split_last().unwrap();
        desk.never_ready.extend((1..=5).map(release_id));
        drain(&mut desk, 1, 10_000, Stateful::Blocks);
        desk.run(5);
        assert_eq!(desk.nodes(good), [1], "five are on their way");
        if crashes {
            let members = broken.iter().flat_map(|group| desk.members(group));
            let new = members.filter(|(_, it)| it.node == node_id(2));
            let new: Vec<_> = new.map(|(id, _)| id).collect();
            assert_eq!(new.len(), MOVING_GROUPS);
            for id in new {
                desk.fail(id, FailureReason::WorkloadExited);
            }
        } else {
            // As long as they may take they are waited for, and no longer.
            desk.run(30);
        }
        desk.run(15);
        assert_eq!(desk.nodes(good), [2], "{crashes}");
        for group in broken {
            assert_eq!(desk.available(group), 1, "the old one serves");
        }
    }
}

#[test]
fn what_a_lost_node_had_is_replaced_at_once_but_for_data() {
    let (web, data) = (group_id(1, "web"), group_id(1, "data"));
    let mut state = cluster(&[16, 16]);
    add_group(&mut state, &web, 2);
    add_stateful(&mut state, &data, 1, 1);
    let mut desk = Desk::new(state);
    desk.run(12);
    let (kept, _) = desk.members(&data)[0];
    desk.lose(1);
    let done = desk.pass();
    let lost = |action: &&Action| {
        matches!(
            action,
            Action::Stop {
                reason: StopReason::NodeLost,
                ..
            }
        )
    };
    assert_eq!(done.iter().filter(lost).count(), 1);
    desk.run(12);
    assert_eq!(desk.available(&web), 2);
    assert_eq!(desk.nodes(&web), [2, 2], "the lost one counts no more");
    assert_eq!(desk.conditions(&data), [Condition::VolumeHomeNodeOffline]);
    assert!(desk.server.state.instances[&kept].is_wanted());
    assert_eq!(desk.members(&data).len(), 1);
    // The booking of the lost one stays until its node says that it is gone.
    let booked = desk.members(&web).len();
    assert_eq!(booked, 3);
    desk.state().nodes.get_mut(&node_id(1)).unwrap().state = NodeState::Active;
    desk.run(12);
    assert_eq!(desk.conditions(&data), []);
    assert_eq!((desk.available(&data), desk.members(&web).len()), (1, 2));
}

#[test]
fn data_starts_again_when_its_home_was_moved_for_good() {
    let data = group_id(1, "data");
    let mut state = cluster(&[16, 16]);
    add_stateful(&mut state, &data, 1, 1);
    let mut desk = Desk::new(state);
    desk.run(12);
    desk.lose(1);
    desk.run(5);
    desk.state().nodes.get_mut(&node_id(1)).unwrap().state = NodeState::Revoked;
    desk.run(5);
    assert_eq!(desk.conditions(&data), [Condition::VolumeHomeNodeOffline]);
    let volume = desk.state().volumes.values_mut().next().unwrap();
    (volume.home, volume.state) = (node_id(2), VolumeState::Available);
    desk.run(12);
    assert_eq!((desk.available(&data), desk.nodes(&data)), (1, vec![2]));
}

#[test]
fn an_instance_may_end_when_no_edge_sends_it_anything() {
    let web = group_id(1, "web");
    let mut state = cluster(&[16]);
    add_group(&mut state, &web, 1);
    let mut desk = Desk::new(state);
    desk.run(12);
    let (id, _) = desk.members(&web)[0];
    desk.server.scale(&web, 0);
    let allows = |done: &[Action]| {
        done.iter()
            .any(|action| matches!(action, Action::AllowStop { .. }))
    };
    assert!(!allows(&desk.pass()), "it is still routed");
    let patience = i64::try_from(EDGE_PATIENCE.as_secs()).unwrap();
    desk.second += patience - 1;
    assert!(!allows(&desk.pass()));
    desk.second += 1;
    assert!(allows(&desk.pass()), "edges had their time");
    // One that no edge knows, or that all have dropped, need not wait.
    let mut dropped = Desk::new(desk.server.state.clone());
    let instance = dropped.state().instances.get_mut(&id).unwrap();
    (instance.desired, instance.routed) = (Desired::Running, false);
    dropped.second = desk.second;
    assert!(allows(&dropped.pass()));
    // Having had its grace it counts as stopped, whatever the node says.
    desk.second += 5;
    desk.pass();
    let Desired::Stopped { reason } = desk.server.state.instances[&id].desired else {
        panic!("it should be stopped");
    };
    assert_eq!(reason, StopReason::GracePassed);
    assert_eq!(
        desk.live(&web).len(),
        1,
        "but it takes its memory until then"
    );
}

#[test]
fn the_first_to_go_is_failed_then_not_ready_then_oldest() {
    let web = group_id(1, "web");
    let mut state = cluster(&[16, 16]);
    add_group(&mut state, &web, 4);
    let mut desk = Desk::new(state);
    desk.run(12);
    let ids: Vec<_> = desk.members(&web).iter().map(|(id, _)| *id).collect();
    desk.fail(ids[3], FailureReason::WorkloadExited);
    let now = desk.now();
    desk.server
        .report(ids[2], InstanceStatus::Unhealthy, None, now);
    for (count, gone) in [(3, ids[3]), (2, ids[2]), (1, ids[0])] {
        desk.server.scale(&web, count);
        let done = desk.pass();
        let drained: Vec<_> = done
            .iter()
            .filter_map(|action| match action {
                Action::Drain {
                    instance, reason, ..
                } => Some((*instance, *reason)),
                _ => None,
            })
            .collect();
        assert_eq!(drained, [(gone, DrainReason::ScaleDown)]);
    }
}

#[test]
fn what_a_host_breaks_moves_and_what_an_app_breaks_stays() {
    let web = group_id(1, "web");
    let mut state = cluster(&[16, 16, 16]);
    add_group(&mut state, &web, 1);
    let mut desk = Desk::new(state);
    desk.run(12);
    let (id, instance) = desk.members(&web)[0];
    let first = instance.node.to_bits();
    desk.fail(id, FailureReason::OomKilled);
    desk.run(5);
    assert_eq!(desk.members(&web)[0].0, id);
    let now = desk.now();
    desk.server.report(id, InstanceStatus::Booting, None, now);
    desk.fail(id, FailureReason::BootTimeout);
    desk.run(20);
    let nodes = desk.nodes(&web);
    assert_eq!(nodes.len(), 1);
    assert_ne!(nodes, [first]);
    // It does not wander for ever: after three moves it stays and is retried.
    for _ in 0..5 {
        let (id, _) = desk.members(&web)[0];
        let now = desk.now();
        if desk.members(&web)[0].1.observed.status == InstanceStatus::Failed {
            desk.server.report(id, InstanceStatus::Booting, None, now);
        }
        desk.fail(id, FailureReason::BootTimeout);
        desk.run(20);
    }
    assert_eq!(desk.server.state.groups[&web].replaced.len(), MOVES);
}

#[test]
fn an_image_that_does_not_arrive_is_tried_twice_on_a_node() {
    let web = group_id(1, "web");
    let mut state = cluster(&[16, 16]);
    add_group(&mut state, &web, 1);
    let mut desk = Desk::new(state);
    desk.pass();
    let (id, _) = desk.members(&web)[0];
    let now = desk.now();
    desk.server.report(id, InstanceStatus::Preparing, None, now);
    desk.fail(id, FailureReason::ImagePullFailed);
    assert_eq!(desk.pass(), []);
    desk.server.report(id, InstanceStatus::Booting, None, now);
    desk.fail(id, FailureReason::ImagePullFailed);
    let done = desk.pass();
    let moved = |action: &Action| {
        matches!(
            action,
            Action::Drain {
                reason: DrainReason::HostFailed,
                ..
            }
        )
    };
    assert!(done.iter().any(moved), "{done:?}");
    desk.run(12);
    assert_eq!(desk.nodes(&web), [2]);
}

#[test]
fn a_volume_is_not_free_because_somebody_says_so_too_early() {
    let data = group_id(1, "data");
    let mut state = cluster(&[16]);
    add_stateful(&mut state, &data, 1, 1);
    let mut desk = Desk::new(state);
    desk.run(12);
    desk.deploy(&[&data], 2, options());
    desk.pass();
    desk.state().volumes.values_mut().next().unwrap().state = VolumeState::Available;
    assert_eq!(desk.pass(), []);
    assert_eq!(desk.members(&data).len(), 1);
}
