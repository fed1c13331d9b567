//! Envs that accept less than they did when their instances were placed.

use std::collections::BTreeMap;

use fluffy_planner::lifecycle::{DeployState, NodeState};
use fluffy_planner::model::{Driver, EnvIsolation, OnFailure, RolloutOptions, State};
use fluffy_planner::reason::Condition;

use super::desk::Desk;
use crate::ground::{
    add_group, add_stateful, cluster, env_id, group_id, node_id, options, release_id,
};

/// Has a node run its instances with these drivers alone.
fn equip(state: &mut State, node: u128, drivers: &[Driver]) {
    let node = state.nodes.get_mut(&node_id(node)).unwrap();
    let limits = *node.drivers.values().next().unwrap();
    node.drivers = drivers.iter().map(|driver| (*driver, limits)).collect();
}

/// Two instances that run with a driver on the first of two nodes; the second
/// has Firecracker and is closed.
fn behind(driver: Driver) -> Desk {
    let mut state = cluster(&[16, 16]);
    equip(&mut state, 1, &[driver]);
    state.nodes.get_mut(&node_id(2)).unwrap().state = NodeState::Degraded;
    state.envs.get_mut(&env_id(1)).unwrap().isolation = EnvIsolation::SharedKernelAllowed;
    add_group(&mut state, &group_id(1, "web"), 2);
    let mut desk = Desk::new(state);
    desk.run(12);
    assert_eq!(desk.nodes(&group_id(1, "web")), [1, 1]);
    desk
}

fn drivers(desk: &Desk) -> BTreeMap<Driver, usize> {
    let mut drivers = BTreeMap::new();
    for (_, instance) in desk.live(&group_id(1, "web")) {
        *drivers.entry(instance.driver).or_default() += 1;
    }
    drivers
}

#[test]
fn what_an_env_does_not_accept_any_more_is_replaced_without_a_gap() {
    for (driver, isolation, goes) in [
        (Driver::Container, EnvIsolation::Virtual, true),
        (Driver::Container, EnvIsolation::Protected, true),
        (Driver::QemuEmulated, EnvIsolation::Protected, true),
        (Driver::QemuEmulated, EnvIsolation::Virtual, false),
        (Driver::Qemu, EnvIsolation::Protected, false),
    ] {
        let web = group_id(1, "web");
        let mut desk = behind(driver);
        let second = desk.state().nodes.get_mut(&node_id(2)).unwrap();
        second.state = NodeState::Active;
        desk.run(20);
        assert_eq!(drivers(&desk), BTreeMap::from([(driver, 2)]), "the control");
        desk.watch(&web);
        desk.server.set_isolation(env_id(1), isolation);
        desk.run(40);
        let left = if goes { Driver::Firecracker } else { driver };
        assert_eq!(drivers(&desk), BTreeMap::from([(left, 2)]));
        let (_, fewest, most) = desk.watched.clone().unwrap();
        assert_eq!((fewest, most), (2, 2 + usize::from(goes)));
        assert_eq!(desk.conditions(&web), []);
    }
}

#[test]
fn what_could_not_run_as_its_env_wants_stays_and_is_said() {
    let web = group_id(1, "web");
    let mut desk = behind(Driver::Container);
    desk.watch(&web);
    desk.server
        .set_isolation(env_id(1), EnvIsolation::Protected);
    desk.run(60);
    assert_eq!(drivers(&desk), BTreeMap::from([(Driver::Container, 2)]));
    assert_eq!(
        desk.watched.clone().unwrap().1,
        2,
        "they served all the time"
    );
    assert_eq!(desk.conditions(&web), [Condition::IsolationUnavailable]);
    // Once a node comes that can, they go.
    let second = desk.state().nodes.get_mut(&node_id(2)).unwrap();
    second.state = NodeState::Active;
    desk.run(40);
    assert_eq!(drivers(&desk), BTreeMap::from([(Driver::Firecracker, 2)]));
    assert_eq!(desk.conditions(&web), []);
    assert_eq!(desk.watched.clone().unwrap().1, 2);
}

#[test]
fn data_is_only_stopped_for_what_could_start_at_home() {
    let data = group_id(1, "data");
    let mut state = cluster(&[16, 16]);
    equip(&mut state, 1, &[Driver::Container]);
    state.envs.get_mut(&env_id(1)).unwrap().isolation = EnvIsolation::SharedKernelAllowed;
    add_stateful(&mut state, &data, 1, 1);
    let mut desk = Desk::new(state);
    desk.run(12);
    desk.watch(&data);
    desk.server.set_isolation(env_id(1), EnvIsolation::Virtual);
    desk.run(60);
    assert_eq!(desk.watched.clone().unwrap().1, 1, "it served all the time");
    assert_eq!(desk.conditions(&data), [Condition::IsolationUnavailable]);
    equip(desk.state(), 1, &[Driver::Qemu, Driver::Container]);
    desk.run(40);
    assert_eq!((desk.available(&data), desk.nodes(&data)), (1, vec![1]));
    assert_eq!(desk.members(&data)[0].1.driver, Driver::Qemu);
    assert_eq!(desk.conditions(&data), []);
}

#[test]
fn a_deploy_that_began_before_ends_with_what_its_env_accepts() {
    let web = group_id(1, "web");
    let mut desk = behind(Driver::Container);
    desk.deploy(&[&web], 2, options());
    desk.run(6);
    let second = desk.state().nodes.get_mut(&node_id(2)).unwrap();
    second.state = NodeState::Active;
    desk.server.set_isolation(env_id(1), EnvIsolation::Virtual);
    desk.run(60);
    assert_eq!(desk.last_deploy().1, DeployState::Succeeded);
    assert_eq!(drivers(&desk), BTreeMap::from([(Driver::Firecracker, 2)]));
}

#[test]
fn what_a_failed_deploy_left_gives_way_only_where_others_are_there_first() {
    let (web, data) = (group_id(1, "web"), group_id(1, "data"));
    let mut state = cluster(&[16, 16]);
    equip(&mut state, 1, &[Driver::Container]);
    state.nodes.get_mut(&node_id(2)).unwrap().state = NodeState::Degraded;
    state.envs.get_mut(&env_id(1)).unwrap().isolation = EnvIsolation::SharedKernelAllowed;
    add_group(&mut state, &web, 2);
    add_stateful(&mut state, &data, 1, 1);
    let mut desk = Desk::new(state);
    desk.run(12);
    for group in [&web, &data] {
        desk.state().groups.get_mut(group).unwrap().held = true;
    }
    let second = desk.state().nodes.get_mut(&node_id(2)).unwrap();
    second.state = NodeState::Active;
    equip(desk.state(), 1, &[Driver::Firecracker, Driver::Container]);
    // What failed does not come up, and what serves stays.
    desk.never_ready.insert(release_id(1));
    desk.server.set_isolation(env_id(1), EnvIsolation::Virtual);
    desk.run(60);
    assert_eq!((desk.available(&web), desk.available(&data)), (2, 1));
    assert_eq!(desk.members(&data)[0].1.driver, Driver::Container);
    // It does after all: those that need not go first are replaced.
    desk.never_ready.clear();
    desk.run(60);
    assert_eq!(drivers(&desk), BTreeMap::from([(Driver::Firecracker, 2)]));
    assert_eq!(desk.members(&data)[0].1.driver, Driver::Container);
    // The next deploy sees to the rest.
    let pause = RolloutOptions {
        on_failure: OnFailure::Pause,
        ..options()
    };
    desk.deploy(&[&data], 2, pause);
    desk.run(60);
    assert_eq!(desk.members(&data)[0].1.driver, Driver::Firecracker);
}
