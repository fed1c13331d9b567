//! States that must never be: one mistake for each invariant, made in the end
//! of a real history. Each says whether there was anything to spoil.

use fluffy_base::id::{AppId, DeployId, EnvId, InstanceId, Ipv4Id, RouteId, VolumeId};
use fluffy_control::State;
use fluffy_control::runtime::quota::Dimension;
use fluffy_control::runtime::record::{IPV4_MISSING, Route};
use fluffy_planner::lifecycle::{DeployState, RouteState};

pub(super) type Fault = fn(&mut State) -> bool;

/// All instances have the address of the first.
pub(super) fn one_address_for_all(state: &mut State) -> bool {
    let all = &mut state.runtime.instances;
    let Some(address) = all.values().next().map(|it| it.address) else {
        return false;
    };
    let many = all.len();
    all.values_mut().for_each(|it| it.address = address);
    many > 1
}

/// Something goes, and its address stays taken.
pub(super) fn an_address_kept(state: &mut State) -> bool {
    state.runtime.instances.pop_first().is_some()
}

/// An instance has more than any node.
pub(super) fn memory_from_nowhere(state: &mut State) -> bool {
    let instances = &mut state.runtime.plan.instances;
    let live = instances.values_mut().find(|it| !it.has_ended());
    live.map(|it| it.booking.memory += 1 << 40).is_some()
}

/// What has a volume is there twice.
pub(super) fn a_second_writer(state: &mut State) -> bool {
    let plan = &mut state.runtime.plan;
    let mut holding = plan.instances.iter();
    let holding = holding.find(|(_, it)| !it.volumes.is_empty() && plan.holds_volumes(it));
    let Some((id, copy)) = holding.map(|(id, it)| (*id, it.clone())) else {
        return false;
    };
    let other = InstanceId::from_bits(id.to_bits() + 1);
    plan.instances.insert(other, copy).is_none()
}

/// What has a volume is on another node.
pub(super) fn data_elsewhere(state: &mut State) -> bool {
    let plan = &mut state.runtime.plan;
    let mut holding = plan.instances.iter();
    let holding = holding.find(|(_, it)| !it.volumes.is_empty() && plan.holds_volumes(it));
    let Some((id, node)) = holding.map(|(id, it)| (*id, it.node)) else {
        return false;
    };
    let mut nodes = plan.nodes.keys().copied();
    let other = nodes.find(|it| *it != node && !plan.is_fenced(*it));
    let moved = plan.instances.get_mut(&id).zip(other);
    moved.map(|(it, other)| it.node = other).is_some()
}

/// There is an app more than its org may have.
pub(super) fn an_app_too_many(state: &mut State) -> bool {
    let runtime = &mut state.runtime;
    let Some((id, app)) = runtime.apps.iter().next().map(|(id, it)| (*id, it.clone())) else {
        return false;
    };
    let used = runtime.used(app.org, Dimension::Apps);
    let org = runtime.orgs.get_mut(&app.org).unwrap();
    org.limits.insert(Dimension::Apps, used);
    let other = AppId::from_bits(id.to_bits() + 1);
    runtime.apps.insert(other, app).is_none()
}

/// There is an instance more than its org may have.
pub(super) fn an_instance_too_many(state: &mut State) -> bool {
    let runtime = &mut state.runtime;
    let plan = &mut runtime.plan;
    let mut live = plan.instances.iter();
    let live = live.find(|(_, it)| plan.counts(it));
    let Some((id, copy)) = live.map(|(id, it)| (*id, it.clone())) else {
        return false;
    };
    let (org, record) = (
        plan.envs[&copy.group.env].org,
        runtime.instances[&id].clone(),
    );
    let other = InstanceId::from_bits(id.to_bits() + 1);
    plan.instances.insert(other, copy);
    let used = runtime.used(org, Dimension::Instances);
    let org = runtime.orgs.get_mut(&org).unwrap();
    org.limits.insert(Dimension::Instances, used - 1);
    runtime.instances.insert(other, record).is_none()
}

/// Two envs of an app have one name.
pub(super) fn an_env_of_the_same_name(state: &mut State) -> bool {
    let envs = &mut state.runtime.envs;
    let live = envs.iter().find(|(_, it)| it.deleted_at.is_none());
    let Some((id, copy)) = live.map(|(id, it)| (*id, it.clone())) else {
        return false;
    };
    let other = EnvId::from_bits(id.to_bits() + 1);
    envs.insert(other, copy).is_none()
}

/// Two volumes of an org have one name.
pub(super) fn a_volume_of_the_same_name(state: &mut State) -> bool {
    let volumes = &mut state.runtime.volumes;
    let Some((id, copy)) = volumes.iter().next().map(|(id, it)| (*id, it.clone())) else {
        return false;
    };
    let other = VolumeId::from_bits(id.to_bits() + 1);
    volumes.insert(other, copy).is_none()
}

/// Puts two routes of two envs in the place of some route: both alike and
/// served, but for what is done to them.
fn two_routes(state: &mut State, change: impl Fn(&mut Route, &mut Route)) -> bool {
    let runtime = &mut state.runtime;
    let Some((id, mut one)) = runtime.routes.pop_first() else {
        return false;
    };
    let mut envs = runtime
        .envs
        .iter()
        .filter(|(_, it)| it.deleted_at.is_none());
    let Some((env, _)) = envs.find(|(env, _)| **env != one.env) else {
        return false;
    };
    one.state = RouteState::Active;
    one.reason = None;
    one.hostname = None;
    one.verified = true;
    one.protocol_hint = "tcp_raw".to_owned();
    one.listen_port = 7000;
    one.ipv4_required = false;
    let mut two = one.clone();
    two.env = *env;
    change(&mut one, &mut two);
    let other = RouteId::from_bits(id.to_bits() + 1);
    let there = runtime.routes.insert(other, two).is_some();
    runtime.routes.insert(id, one);
    !there
}

fn by_name(route: &mut Route, name: &str) {
    route.protocol_hint = "tls_passthrough".to_owned();
    route.hostname = Some(name.to_owned());
}

/// Two envs have proven one name, at two ports.
pub(super) fn a_hostname_proven_twice(state: &mut State) -> bool {
    two_routes(state, |one, two| {
        by_name(one, "twice.example.com");
        by_name(two, "twice.example.com");
        two.listen_port += 1;
    })
}

/// Two envs have one port of what they share.
pub(super) fn a_port_taken_twice(state: &mut State) -> bool {
    two_routes(state, |_, _| ())
}

/// What takes a whole port is at one where names are told apart.
pub(super) fn a_port_taken_from_names(state: &mut State) -> bool {
    two_routes(state, |one, _| by_name(one, "one.example.com"))
}

/// What takes a whole port is at one that is nobody's alone.
pub(super) fn a_port_taken_from_all(state: &mut State) -> bool {
    two_routes(state, |one, _| one.listen_port = 443)
}

/// An env has one port of its own address twice.
pub(super) fn an_own_port_taken_twice(state: &mut State) -> bool {
    two_routes(state, |one, two| {
        by_name(one, "one.example.com");
        two.env = one.env;
        two.ipv4_required = true;
    })
}

/// One port of an address that an env really has is told twice.
pub(super) fn an_own_port_told_twice(state: &mut State) -> bool {
    give_addresses(state);
    two_routes(state, |one, two| {
        two.env = one.env;
        (one.ipv4_required, two.ipv4_required) = (true, true);
    })
}

/// Gives every env a public address of its own.
fn give_addresses(state: &mut State) {
    let envs = state.runtime.envs.values_mut();
    for (number, env) in (1_u8..).zip(envs) {
        let id = Ipv4Id::from_bits(number.into());
        env.ipv4 = Some((id, [198, 51, 100, number].into()));
    }
}

/// One name at one port is told twice.
pub(super) fn a_name_told_twice(state: &mut State) -> bool {
    two_routes(state, |one, two| {
        by_name(one, "twice.example.com");
        by_name(two, "twice.example.com");
    })
}

/// What needs an address is told without one.
pub(super) fn an_address_lost(state: &mut State) -> bool {
    state
        .runtime
        .envs
        .values_mut()
        .for_each(|it| it.ipv4 = None);
    two_routes(state, |one, two| {
        one.ipv4_required = true;
        two.listen_port += 1;
    })
}

/// What needs no address waits for one.
pub(super) fn a_need_that_is_none(state: &mut State) -> bool {
    two_routes(state, |one, two| {
        one.state = RouteState::Blocked;
        one.reason = Some(IPV4_MISSING.to_owned());
        two.listen_port += 1;
    })
}

/// What serves was never proven.
pub(super) fn a_route_of_whoever_asked(state: &mut State) -> bool {
    two_routes(state, |one, two| {
        by_name(one, "one.example.com");
        one.verified = false;
        two.listen_port += 1;
    })
}

/// There are two deploys of one group.
pub(super) fn a_second_deploy(state: &mut State) -> bool {
    let deploys = &mut state.runtime.plan.deploys;
    let Some((id, copy)) = deploys.iter().next().map(|(id, it)| (*id, it.clone())) else {
        return false;
    };
    let other = DeployId::from_bits(id.to_bits() + 1);
    deploys.insert(other, copy).is_none()
}

/// What has ended is still planned for.
pub(super) fn a_deploy_that_stays(state: &mut State) -> bool {
    let deploys = &mut state.runtime.plan.deploys;
    let one = deploys.values_mut().next();
    one.map(|it| it.state = DeployState::Succeeded).is_some()
}

/// The planner knows a node that nobody else does.
pub(super) fn a_node_forgotten(state: &mut State) -> bool {
    state.runtime.nodes.pop_first().is_some()
}

/// The planner has no group for an instance.
pub(super) fn a_group_forgotten(state: &mut State) -> bool {
    let plan = &mut state.runtime.plan;
    let one = plan.instances.values().next();
    let group = one.map(|it| it.group.clone());
    group.is_some_and(|group| plan.groups.remove(&group).is_some())
}
