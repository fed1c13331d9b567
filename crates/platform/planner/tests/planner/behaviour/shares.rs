//! Quotas, turns, crash loops, and reasons that last.

use fluffy_planner::action::Action;
use fluffy_planner::lifecycle::InstanceStatus;
use fluffy_planner::reason::{Condition, Dimension, FailureReason};
use fluffy_planner::{CRASH_PAUSE, FAILURE_PAUSE, TURN, plan};

use super::desk::Desk;
use crate::ground::{add_env, add_group, at, cluster, env_id, group_id, org_id};

#[test]
fn each_dimension_of_a_quota_is_named_and_nothing_is_killed() {
    let web = group_id(1, "web");
    for dimension in [Dimension::Instances, Dimension::Memory, Dimension::Cpu] {
        let mut state = cluster(&[64]);
        add_group(&mut state, &web, 5);
        let quota = &mut state.orgs.get_mut(&org_id(1)).unwrap().quota;
        match dimension {
            Dimension::Instances => quota.instances = 3,
            // Three with their 64 MiB each, and not a byte for a fourth.
            Dimension::Memory => quota.memory = 4 * 576 * (1 << 20) - 1,
            Dimension::Cpu => quota.cpu_millis = 1999,
        }
        let mut desk = Desk::new(state);
        desk.run(12);
        assert_eq!(desk.available(&web), 3);
        assert_eq!(
            desk.conditions(&web),
            [Condition::OrgQuotaExceeded(dimension)]
        );
        let quota = &mut desk.state().orgs.get_mut(&org_id(1)).unwrap().quota;
        quota.instances = 1;
        desk.run(12);
        assert_eq!(desk.available(&web), 3, "lowering a limit kills nothing");
    }
}

#[test]
fn what_could_not_be_placed_says_why_once_and_then_every_five_minutes() {
    let web = group_id(1, "web");
    let mut state = cluster(&[2, 1]);
    add_group(&mut state, &web, 5);
    let mut desk = Desk::new(state);
    let mut told = Vec::new();
    let pause = i64::try_from(FAILURE_PAUSE.as_secs()).unwrap();
    while desk.second < pause + 10 {
        let second = desk.second;
        for action in desk.pass() {
            if let Action::RecordFailure {
                wanted,
                reason,
                rejected,
                ..
            } = action
            {
                assert_eq!(reason, Condition::NoCapacityMemory);
                assert_eq!(rejected.0.values().sum::<u32>(), 2, "both nodes, counted");
                told.push((second, wanted));
            }
        }
        desk.run(1);
    }
    assert_eq!(told, [(0, 3), (pause, 3)]);
}

#[test]
fn orgs_take_turns_of_thirty_two() {
    let mut state = cluster(&[64; 10]);
    for org in 1..=3_u128 {
        add_env(&mut state, org, org);
        for group in 0..3 {
            add_group(&mut state, &group_id(org, &format!("g{group}")), 100);
        }
        state.orgs.get_mut(&org_id(org)).unwrap().quota.instances = 1000;
        state.orgs.get_mut(&org_id(org)).unwrap().quota.cpu_millis = 1_000_000;
        state.orgs.get_mut(&org_id(org)).unwrap().quota.memory = 1 << 50;
    }
    // Room for 200, and 300 are wanted by each.
    for node in state.nodes.values_mut() {
        node.capacity.disk = 20 << 30;
    }
    let mut placed = [0_usize; 3];
    for step in plan(&state, at(0)) {
        for action in step.actions {
            if let Action::Allocate(allocation) = action {
                let org = usize::try_from(allocation.group.env.to_bits()).unwrap();
                placed[org - 1] += 1;
            }
        }
    }
    assert_eq!(placed.iter().sum::<usize>(), 200);
    let (most, fewest) = (placed.iter().max().unwrap(), placed.iter().min().unwrap());
    assert!(most - fewest <= TURN, "{placed:?}");
}

#[test]
fn a_group_that_crashes_over_and_over_is_slowed_and_said_so() {
    let web = group_id(1, "web");
    let mut state = cluster(&[16, 16]);
    add_group(&mut state, &web, 2);
    let mut desk = Desk::new(state);
    desk.run(12);
    let ids: Vec<_> = desk.members(&web).iter().map(|(id, _)| *id).collect();
    for id in &ids {
        desk.fail(*id, FailureReason::CrashLoopBackoff);
    }
    desk.run(5);
    assert_eq!(desk.conditions(&web), [Condition::CrashLooping]);
    assert_eq!(desk.nodes(&web), [1, 2], "they stay where they are");
    // One that is lost is replaced, but only every five minutes.
    desk.lose(1);
    let pause = i64::try_from(CRASH_PAUSE.as_secs()).unwrap();
    desk.run(pause - 30);
    assert_eq!(desk.live(&web).len(), 1);
    desk.run(60);
    assert_eq!(desk.live(&web).len(), 2);
    // Ten healthy minutes of all end it.
    let now = desk.now();
    for id in ids {
        if desk.server.state.instances[&id].observed.status == InstanceStatus::Failed {
            desk.server.report(id, InstanceStatus::Booting, None, now);
        }
    }
    desk.run(300);
    assert_eq!(desk.conditions(&web), [Condition::CrashLooping]);
    desk.run(330);
    assert_eq!(desk.conditions(&web), []);
}

#[test]
fn a_new_deploy_ends_a_crash_loop() {
    let web = group_id(1, "web");
    let mut state = cluster(&[16, 16]);
    add_group(&mut state, &web, 1);
    let mut desk = Desk::new(state);
    desk.run(12);
    let (id, _) = desk.members(&web)[0];
    desk.fail(id, FailureReason::CrashLoopBackoff);
    desk.run(5);
    assert_eq!(desk.conditions(&web), [Condition::CrashLooping]);
    desk.deploy(&[&web], 2, crate::ground::options());
    desk.run(30);
    assert_eq!(desk.conditions(&web), []);
    assert_eq!(desk.available(&web), 1);
}

#[test]
fn an_env_that_is_deleted_is_cleared() {
    let web = group_id(1, "web");
    let mut state = cluster(&[16]);
    add_group(&mut state, &web, 3);
    let mut desk = Desk::new(state);
    desk.run(12);
    desk.server.delete_env(env_id(1));
    desk.run(20);
    assert_eq!(desk.members(&web).len(), 0);
}
