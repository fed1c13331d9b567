//! Roll-outs, health gates, rollbacks, restarts and secrets.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_planner::RETRIES;
use fluffy_planner::lifecycle::{DeployState, InstanceStatus, NodeState, SecretBundleState};
use fluffy_planner::model::{
    Arch, DeployKind, Downtime, Driver, GroupId, OnFailure, RolloutOptions, SecretUse, Secrets,
    State,
};
use fluffy_planner::reason::{Condition, Dimension, FailureReason};

use super::desk::Desk;
use crate::ground::{
    GIB, add_group, add_stateful, cluster, env_id, group_id, hash, node_id, options, release_id,
    secret_id,
};

fn desk(sizes: &[u64], count: u32) -> (Desk, GroupId) {
    let web = group_id(1, "web");
    let mut state = cluster(sizes);
    add_group(&mut state, &web, count);
    let mut desk = Desk::new(state);
    desk.run(12);
    (desk, web)
}

#[test]
fn a_group_gets_its_count_and_no_more() {
    let (mut desk, web) = desk(&[16, 16, 16], 3);
    assert_eq!(desk.nodes(&web), [1, 2, 3]);
    assert_eq!(desk.available(&web), 3);
    desk.server.scale(&web, 5);
    desk.run(12);
    assert_eq!(desk.available(&web), 5);
    desk.server.scale(&web, 1);
    desk.run(20);
    assert_eq!(desk.members(&web).len(), 1);
}

#[test]
fn a_rollout_keeps_to_its_bounds() {
    for (surge, unavailable) in [(1, 0), (0, 1), (2, 1), (3, 0), (0, 3)] {
        let (mut desk, web) = desk(&[16, 16, 16], 4);
        desk.watch(&web);
        let bounds = RolloutOptions {
            max_surge: surge,
            max_unavailable: unavailable,
            ..options()
        };
        desk.deploy(&[&web], 2, bounds);
        desk.run(150);
        assert_eq!(
            desk.last_deploy(),
            (DeployKind::Deploy, DeployState::Succeeded)
        );
        let new = desk.server.state.groups[&web].spec.hash;
        assert!(desk.members(&web).iter().all(|(_, it)| it.spec == new));
        assert_eq!(desk.available(&web), 4);
        let (_, fewest, most) = desk.watched.clone().unwrap();
        assert!(
            fewest >= 4 - unavailable as usize,
            "{fewest} with {bounds:?}"
        );
        assert!(most <= 4 + surge as usize, "{most} with {bounds:?}");
    }
}

#[test]
fn without_room_for_one_more_old_ones_go_first() {
    // 1495 MiB for instances, and each takes 576 MiB: two and no third.
    let (mut desk, web) = desk(&[2], 2);
    desk.watch(&web);
    desk.deploy(&[&web], 2, options());
    desk.run(2);
    assert_eq!(
        desk.conditions(&web),
        [Condition::NoCapacityMemory, Condition::DrainFirst]
    );
    desk.run(80);
    assert_eq!(
        desk.last_deploy(),
        (DeployKind::Deploy, DeployState::Succeeded)
    );
    assert_eq!(desk.conditions(&web), []);
    let (_, fewest, most) = desk.watched.clone().unwrap();
    assert_eq!((fewest, most), (1, 2));
}

#[test]
fn nobody_goes_first_for_what_could_not_come() {
    type Change = fn(&mut State);
    let cases: [(Change, Condition); 6] = [
        (
            |state| {
                let nodes = state.nodes.values_mut();
                nodes.for_each(|node| node.state = NodeState::Degraded);
            },
            Condition::NoNodesActive,
        ),
        (
            |state| {
                for node in state.nodes.values_mut() {
                    let limits = node.drivers[&Driver::Firecracker];
                    node.drivers = BTreeMap::from([(Driver::Container, limits)]);
                }
            },
            Condition::IsolationUnavailable,
        ),
        (
            |state| {
                let nodes = state.nodes.values_mut();
                nodes.for_each(|node| node.arch = Arch::Arm64);
            },
            Condition::ArchUnavailable,
        ),
        // One that goes leaves 919 MiB.
        (
            |state| {
                let groups = state.groups.values_mut();
                groups.for_each(|group| group.spec.resources.memory = GIB);
            },
            Condition::NoCapacityMemory,
        ),
        (
            |state| {
                let orgs = state.orgs.values_mut();
                orgs.for_each(|org| org.quota.instances = 1);
            },
            Condition::OrgQuotaExceeded(Dimension::Instances),
        ),
        // A quota that has room for it, and no node that has.
        (
            |state| {
                let orgs = state.orgs.values_mut();
                orgs.for_each(|org| org.quota.instances = 2);
                let nodes = state.nodes.values_mut();
                nodes.for_each(|node| node.arch = Arch::Arm64);
            },
            Condition::OrgQuotaExceeded(Dimension::Instances),
        ),
    ];
    for (change, condition) in cases {
        let (mut desk, web) = desk(&[2], 2);
        change(desk.state());
        desk.watch(&web);
        desk.deploy(&[&web], 2, options());
        desk.run(60);
        assert_eq!(desk.conditions(&web), [condition]);
        assert_eq!(desk.watched.clone().unwrap().1, 2, "{condition}");
        assert_eq!(desk.last_deploy().1, DeployState::Rolling);
    }
}

#[test]
fn who_goes_first_is_who_makes_room() {
    let web = group_id(1, "web");
    let mut state = cluster(&[2, 2]);
    add_group(&mut state, &web, 2);
    state.groups.get_mut(&web).unwrap().spec.resources.memory = GIB;
    let mut desk = Desk::new(state);
    desk.run(12);
    assert_eq!(desk.nodes(&web), [1, 2], "each is full");
    // The older one is where nothing new may go.
    desk.state().nodes.get_mut(&node_id(1)).unwrap().state = NodeState::Degraded;
    desk.watch(&web);
    desk.deploy(&[&web], 2, options());
    desk.run(60);
    assert_eq!(desk.watched.clone().unwrap().1, 1);
    assert_eq!((desk.available(&web), desk.nodes(&web)), (2, vec![1, 2]));
    let new = desk.server.state.groups[&web].spec.hash;
    let members = desk.members(&web);
    let of_node = |node| members.iter().find(|(_, it)| it.node == node_id(node));
    assert_eq!(of_node(2).unwrap().1.spec, new);
    assert_ne!(of_node(1).unwrap().1.spec, new);
    assert_eq!(desk.conditions(&web), [Condition::NoCapacityMemory]);
}

#[test]
fn a_single_instance_without_room_waits_unless_downtime_is_allowed() {
    for downtime in [Downtime::Refused, Downtime::Allowed] {
        let web = group_id(1, "web");
        let mut state = cluster(&[2]);
        add_group(&mut state, &web, 1);
        state.groups.get_mut(&web).unwrap().spec.resources.memory = GIB;
        let mut desk = Desk::new(state);
        desk.run(12);
        desk.watch(&web);
        desk.deploy(
            &[&web],
            2,
            RolloutOptions {
                downtime,
                ..options()
            },
        );
        desk.run(60);
        let (_, fewest, most) = desk.watched.clone().unwrap();
        assert_eq!(most, 1);
        match downtime {
            Downtime::Refused => {
                assert_eq!(fewest, 1);
                assert!(desk.conditions(&web).contains(&Condition::SurgeBlocked));
                assert_eq!(desk.last_deploy().1, DeployState::Rolling);
            }
            Downtime::Allowed => {
                assert_eq!(fewest, 0);
                assert_eq!(desk.last_deploy().1, DeployState::Succeeded);
            }
        }
    }
}

#[test]
fn a_quota_without_room_for_one_more_is_no_lack_of_capacity() {
    let (mut desk, web) = desk(&[16, 16], 2);
    let org = desk.state().orgs.values_mut().next().unwrap();
    org.quota.instances = 2;
    desk.deploy(&[&web], 2, options());
    desk.run(2);
    let quota = Condition::OrgQuotaExceeded(Dimension::Instances);
    assert_eq!(desk.conditions(&web), [quota, Condition::DrainFirst]);
    assert_eq!(quota.to_string(), "org_quota_exceeded:instances");
    desk.run(80);
    assert_eq!(desk.last_deploy().1, DeployState::Succeeded);
}

#[test]
fn three_that_do_not_start_end_a_deploy_and_the_release_before_comes_back() {
    let (mut desk, web) = desk(&[16, 16], 3);
    let before: Vec<_> = desk.members(&web).iter().map(|(id, _)| *id).collect();
    desk.watch(&web);
    desk.never_ready.insert(release_id(2));
    desk.deploy(&[&web], 2, options());
    desk.run(130);
    assert_eq!(desk.server.state.groups[&web].replaced.len(), 2);
    let kinds: Vec<_> = desk
        .server
        .state
        .deploys
        .values()
        .map(|it| (it.kind, it.state))
        .collect();
    assert_eq!(
        kinds,
        [
            (DeployKind::Deploy, DeployState::Failed),
            (DeployKind::Rollback, DeployState::Succeeded)
        ]
    );
    assert_eq!(desk.server.state.groups[&web].spec.release, release_id(1));
    let after: Vec<_> = desk.members(&web).iter().map(|(id, _)| *id).collect();
    assert_eq!(after, before, "the old ones served all the time");
    assert_eq!(desk.watched.clone().unwrap().1, 3);
}

#[test]
fn what_a_failed_deploy_had_added_goes_with_it() {
    let web = group_id(1, "web");
    let job = group_id(1, "job");
    let mut state = cluster(&[16, 16]);
    add_group(&mut state, &web, 2);
    add_group(&mut state, &job, 0);
    let mut desk = Desk::new(state);
    desk.run(12);
    desk.never_ready.insert(release_id(2));
    desk.deploy(&[&web, &job], 2, options());
    // Before this deploy nobody wanted a job.
    let deploy = desk.state().deploys.values_mut().last().unwrap();
    deploy.groups.insert(job.clone(), None);
    desk.server.scale(&job, 1);
    desk.run(5);
    assert_eq!(desk.live(&job).len(), 1, "the control: it was wanted");
    desk.run(200);
    assert_eq!(
        desk.last_deploy(),
        (DeployKind::Rollback, DeployState::Succeeded)
    );
    assert_eq!(desk.server.state.groups[&web].spec.release, release_id(1));
    assert_eq!(desk.server.state.groups[&job].count, 0);
    assert_eq!(desk.live(&job).len(), 0);
}

#[test]
fn a_first_deploy_that_fails_has_nothing_to_go_back_to() {
    let (mut desk, web) = desk(&[16, 16], 1);
    desk.never_ready.insert(release_id(2));
    desk.deploy(&[&web], 2, options());
    let deploy = desk.state().deploys.values_mut().last().unwrap();
    deploy.groups.insert(web.clone(), None);
    desk.run(200);
    assert_eq!(desk.last_deploy().1, DeployState::Failed);
    assert_eq!(desk.server.state.deploys.len(), 1);
}

#[test]
fn one_that_crashes_over_and_over_ends_a_deploy_at_once() {
    let (mut desk, web) = desk(&[16, 16], 3);
    let before: Vec<_> = desk.members(&web).iter().map(|(id, _)| *id).collect();
    desk.never_ready.insert(release_id(2));
    desk.deploy(&[&web], 2, options());
    desk.run(2);
    let members = desk.members(&web);
    let new = members.iter().find(|(id, _)| !before.contains(id));
    desk.fail(new.unwrap().0, FailureReason::CrashLoopBackoff);
    desk.run(2);
    let states: Vec<_> = desk
        .server
        .state
        .deploys
        .values()
        .map(|it| it.state)
        .collect();
    assert_eq!(states[0], DeployState::Failed);
    assert_eq!(desk.server.state.groups[&web].replaced.len(), 0);
}

#[test]
fn secrets_that_do_not_arrive_are_tried_three_times_and_end_a_deploy() {
    let (mut desk, web) = desk(&[16, 16], 2);
    let before: Vec<_> = desk.members(&web).iter().map(|(id, _)| *id).collect();
    desk.never_ready.insert(release_id(2));
    desk.deploy(&[&web], 2, options());
    let mut tries = 0;
    while desk.server.state.deploys.len() == 1 {
        desk.run(2);
        let members = desk.members(&web);
        let new = members.iter().find(|(id, it)| {
            !before.contains(id) && it.observed.status == InstanceStatus::Booting && it.is_wanted()
        });
        if let Some(id) = new.map(|(id, _)| *id) {
            desk.fail(id, FailureReason::SecretsInjectionFailed);
            tries += 1;
        }
        assert!(desk.second < 60, "nobody waits for what failed already");
    }
    assert_eq!(tries, RETRIES);
    desk.run(60);
    assert_eq!(
        desk.last_deploy(),
        (DeployKind::Rollback, DeployState::Succeeded)
    );
    assert_eq!(desk.available(&web), 2);
}

#[test]
fn secrets_that_do_not_arrive_later_get_another_instance_but_not_for_ever() {
    let (web, data) = (group_id(1, "web"), group_id(1, "data"));
    let mut state = cluster(&[16, 16]);
    add_group(&mut state, &web, 1);
    add_stateful(&mut state, &data, 1, 2);
    let mut desk = Desk::new(state);
    desk.run(12);
    for group in [&web, &data] {
        let mut seen = BTreeSet::new();
        for _ in 0..60 {
            let mut live = desk.live(group).into_iter();
            let ready =
                live.find(|(_, it)| it.is_wanted() && it.observed.status == InstanceStatus::Ready);
            let ready = ready.map(|(id, _)| id);
            drop(live);
            if let Some(id) = ready {
                seen.insert(id);
                desk.fail(id, FailureReason::SecretsInjectionFailed);
            }
            desk.run(1);
        }
        assert_eq!(seen.len(), 1 + RETRIES, "three others in ten minutes");
        desk.run(600);
        assert_eq!(desk.available(group), 1, "then it is tried again");
    }
    assert_eq!(desk.nodes(&data), [2], "where it is at home");
}

#[test]
fn a_failed_gate_pauses_where_that_is_wanted_and_the_mix_stays() {
    let (mut desk, web) = desk(&[16, 16], 3);
    desk.never_ready.insert(release_id(2));
    let pause = RolloutOptions {
        on_failure: OnFailure::Pause,
        ..options()
    };
    desk.deploy(&[&web], 2, pause);
    desk.run(130);
    assert_eq!(desk.last_deploy().1, DeployState::Paused);
    let mix = desk.nodes(&web);
    assert_eq!(mix.len(), 4, "three old ones and a new one");
    desk.run(320);
    assert_eq!(desk.last_deploy().1, DeployState::Failed);
    assert_eq!(desk.available(&web), 3);
    desk.run(60);
    assert_eq!(desk.available(&web), 3);
    assert_eq!(desk.members(&web).len(), 3, "and nothing goes on by itself");
    assert_eq!(desk.server.state.deploys.len(), 1);
}

#[test]
fn an_image_that_is_too_large_ends_a_deploy_at_once() {
    let (mut desk, web) = desk(&[16, 16], 2);
    desk.deploy(&[&web], 2, options());
    desk.run(2);
    let new = desk.server.state.groups[&web].spec.hash;
    let members = desk.members(&web);
    let (id, _) = *members.iter().find(|(_, it)| it.spec == new).unwrap();
    desk.fail(id, FailureReason::ImageTooLarge);
    desk.pass();
    assert_eq!(desk.last_deploy().0, DeployKind::Rollback);
    desk.run(60);
    assert_eq!(desk.last_deploy().1, DeployState::Succeeded);
    assert_eq!(desk.server.state.groups[&web].spec.release, release_id(1));
}

#[test]
fn what_was_given_up_before_a_deploy_is_replaced_by_it() {
    for reason in [
        FailureReason::ImageTooLarge,
        FailureReason::CrashLoopBackoff,
        FailureReason::SecretsInjectionFailed,
    ] {
        let (mut desk, web) = desk(&[16, 16], 2);
        let before: Vec<_> = desk.members(&web).iter().map(|(id, _)| *id).collect();
        for id in &before {
            desk.fail(*id, reason);
        }
        // The same release again: a limit was raised, or a database is back.
        desk.run(2);
        desk.deploy(&[&web], 1, options());
        desk.run(60);
        assert_eq!(
            desk.last_deploy(),
            (DeployKind::Deploy, DeployState::Succeeded)
        );
        let live = desk.live(&web);
        assert!(live.iter().all(|(id, _)| !before.contains(id)), "{live:?}");
        assert_eq!(desk.available(&web), 2);
    }
}

#[test]
fn a_deploy_that_takes_too_long_fails() {
    let (mut desk, web) = desk(&[2], 1);
    desk.state()
        .groups
        .get_mut(&web)
        .unwrap()
        .spec
        .resources
        .memory = GIB;
    desk.deploy(&[&web], 2, options());
    desk.run(299);
    assert_eq!(
        desk.last_deploy(),
        (DeployKind::Deploy, DeployState::Rolling)
    );
    desk.run(30);
    assert_eq!(
        desk.last_deploy(),
        (DeployKind::Rollback, DeployState::Succeeded)
    );
    assert_eq!(desk.available(&web), 1);
}

#[test]
fn old_ones_that_are_unwell_are_not_all_given_up_for_new_ones() {
    let (mut desk, web) = desk(&[16, 16], 3);
    let now = desk.now();
    let ids: Vec<_> = desk.members(&web).iter().map(|(id, _)| *id).collect();
    for id in ids {
        desk.server.report(id, InstanceStatus::Unhealthy, None, now);
    }
    desk.never_ready.insert(release_id(2));
    desk.deploy(&[&web], 2, options());
    for _ in 0..60 {
        desk.run(1);
        let members = desk.members(&web);
        let wanted = members.iter().filter(|(_, it)| it.is_wanted()).count();
        assert!(wanted >= 3, "{wanted} at {}", desk.second);
    }
}

#[test]
fn a_canceled_deploy_leaves_nothing_behind() {
    let (mut desk, web) = desk(&[16, 16], 3);
    desk.watch(&web);
    desk.deploy(&[&web], 2, options());
    desk.run(12);
    let (id, _) = desk.server.state.deploys.last_key_value().unwrap();
    let id = *id;
    desk.server.cancel(id);
    desk.run(60);
    let wanted = desk.server.state.groups[&web].spec.hash;
    assert_eq!(desk.server.state.groups[&web].spec.release, release_id(1));
    assert!(desk.members(&web).iter().all(|(_, it)| it.spec == wanted));
    assert_eq!(desk.available(&web), 3);
    assert!(desk.watched.clone().unwrap().1 >= 3);
}

#[test]
fn a_deploy_of_several_groups_succeeds_when_all_have() {
    let (web, work) = (group_id(1, "web"), group_id(1, "work"));
    let mut state = cluster(&[16, 16]);
    add_group(&mut state, &web, 2);
    add_group(&mut state, &work, 0);
    let mut desk = Desk::new(state);
    desk.run(12);
    desk.deploy(&[&web, &work], 2, options());
    desk.run(9);
    assert_eq!(desk.last_deploy().1, DeployState::Rolling);
    desk.run(40);
    assert_eq!(desk.last_deploy().1, DeployState::Succeeded);
}

#[test]
fn a_volume_is_given_back_before_the_next_instance_gets_it() {
    let data = group_id(1, "data");
    let mut state = cluster(&[16, 16]);
    add_stateful(&mut state, &data, 1, 2);
    let mut desk = Desk::new(state);
    desk.run(12);
    assert_eq!(desk.nodes(&data), [2], "the volume's home");
    desk.watch(&data);
    desk.deploy(&[&data], 2, options());
    desk.run(40);
    assert_eq!(desk.last_deploy().1, DeployState::Succeeded);
    assert_eq!(desk.nodes(&data), [2]);
    let (_, fewest, most) = desk.watched.clone().unwrap();
    assert_eq!((fewest, most), (0, 1), "downtime, and never two");
}

#[test]
fn data_is_not_stopped_for_what_could_not_start() {
    let data = group_id(1, "data");
    for (closed, condition) in [
        (false, Condition::NoCapacityMemory),
        (true, Condition::VolumeLocalityNoNode),
    ] {
        let mut state = cluster(&[4, 16]);
        add_stateful(&mut state, &data, 1, 1);
        let mut desk = Desk::new(state);
        desk.run(12);
        desk.watch(&data);
        if closed {
            let home = desk.state().nodes.values_mut().next().unwrap();
            home.state = NodeState::Degraded;
        } else {
            let group = desk.state().groups.get_mut(&data).unwrap();
            group.spec.resources.memory = 8 * GIB;
        }
        desk.deploy(&[&data], 2, options());
        desk.run(60);
        assert_eq!(desk.conditions(&data), [condition]);
        assert_eq!(desk.watched.clone().unwrap().1, 1, "it served all the time");
        assert_eq!(desk.last_deploy().1, DeployState::Rolling);
        desk.run(300);
        assert_eq!(desk.server.state.groups[&data].spec.release, release_id(1));
        assert_eq!(desk.available(&data), 1);
    }
}

#[test]
fn more_than_one_instance_with_a_volume_is_refused_by_name() {
    let data = group_id(1, "data");
    let mut state = cluster(&[16, 16]);
    add_stateful(&mut state, &data, 1, 2);
    state.groups.get_mut(&data).unwrap().count = 2;
    let mut desk = Desk::new(state);
    desk.run(12);
    assert_eq!(desk.members(&data).len(), 1);
    assert_eq!(
        desk.conditions(&data),
        [Condition::VolumeConstraintsInvalid]
    );
}

#[test]
fn a_restart_replaces_the_instance_that_was_named() {
    let (mut desk, web) = desk(&[16, 16], 2);
    let (first, second) = (desk.members(&web)[0].0, desk.members(&web)[1].0);
    desk.watch(&web);
    desk.state().instances.get_mut(&first).unwrap().restart = true;
    let now = desk.now();
    let wanted = vec![(web.clone(), release_id(1))];
    desk.server
        .begin(DeployKind::Restart, wanted, options(), now);
    desk.run(40);
    assert_eq!(
        desk.last_deploy(),
        (DeployKind::Restart, DeployState::Succeeded)
    );
    let left: Vec<_> = desk.members(&web).iter().map(|(id, _)| *id).collect();
    assert!(left.contains(&second) && !left.contains(&first) && left.len() == 2);
    assert_eq!(desk.watched.clone().unwrap().1, 2);
}

#[test]
fn secrets_are_awaited_and_then_rotated_by_a_deploy_of_their_own() {
    let web = group_id(1, "web");
    let mut state = cluster(&[16, 16]);
    add_group(&mut state, &web, 2);
    let group = state.groups.get_mut(&web).unwrap();
    group.spec.secrets = SecretUse::Required(None);
    group.spec.hash = hash(&web, &group.spec);
    let mut desk = Desk::new(state);
    desk.run(5);
    assert_eq!(desk.members(&web).len(), 0);
    assert_eq!(desk.conditions(&web), [Condition::SecretsMissing]);
    let version = |number, state| Secrets {
        version: secret_id(number),
        state,
    };
    desk.server
        .set_secrets(env_id(1), version(1, SecretBundleState::Active));
    desk.run(20);
    assert_eq!(desk.available(&web), 2);
    assert_eq!(desk.conditions(&web), []);
    desk.server
        .set_secrets(env_id(1), version(2, SecretBundleState::Rotating));
    desk.watch(&web);
    desk.run(60);
    let current = SecretUse::Required(Some(secret_id(2)));
    assert_eq!(desk.server.state.groups[&web].spec.secrets, current);
    let bundle = desk.server.state.envs[&env_id(1)].secrets.unwrap();
    assert_eq!(bundle.state, SecretBundleState::Active);
    assert_eq!(
        desk.last_deploy(),
        (DeployKind::Restart, DeployState::Succeeded)
    );
    assert_eq!(desk.watched.clone().unwrap().1, 2);
    // A version that nothing starts with is a failed rotation, told once.
    desk.never_ready.insert(release_id(1));
    desk.server
        .set_secrets(env_id(1), version(3, SecretBundleState::Rotating));
    desk.run(400);
    let bundle = desk.server.state.envs[&env_id(1)].secrets.unwrap();
    assert_eq!(bundle.state, SecretBundleState::RotationFailed);
    assert_eq!(
        desk.last_deploy(),
        (DeployKind::Restart, DeployState::Failed)
    );
    assert_eq!(desk.available(&web), 2, "the old ones go on");
}

#[test]
fn a_process_that_may_end_and_did_is_not_started_again() {
    let (mut desk, web) = desk(&[16], 1);
    let (id, _) = desk.members(&web)[0];
    let now = desk.now();
    desk.server.report(id, InstanceStatus::Draining, None, now);
    desk.server.report(id, InstanceStatus::Stopped, None, now);
    desk.run(30);
    assert_eq!(desk.members(&web).len(), 1);
    desk.deploy(&[&web], 2, options());
    desk.run(30);
    assert_eq!(desk.last_deploy().1, DeployState::Succeeded);
    assert_ne!(desk.members(&web)[0].0, id);
}
