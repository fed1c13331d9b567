//! Whatever happens, what must never happen does not: checked after each step.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_control::State;
use fluffy_control::runtime::quota::Dimension;
use fluffy_planner::lifecycle::RouteState;
use fluffy_test_kit::campaign;

use crate::history::History;

/// What is wrong with a state, if anything.
fn trouble(before: &State, after: &State) -> Option<String> {
    no_address_is_given_twice(after)
        .or_else(|| no_node_has_more_than_it_has(before, after))
        .or_else(|| no_volume_has_two_writers(after))
        .or_else(|| no_org_grows_above_its_quota(before, after))
        .or_else(|| no_claim_is_held_twice(after))
        .or_else(|| every_group_has_one_deploy(after))
        .or_else(|| both_sides_know_the_same(after))
}

fn no_address_is_given_twice(state: &State) -> Option<String> {
    let runtime = &state.runtime;
    let mut seen = BTreeSet::new();
    for (id, instance) in &runtime.instances {
        if !seen.insert(instance.address) {
            return Some(format!("{id} has an address that another has"));
        }
    }
    let taken: BTreeSet<u128> = runtime.ipam.instances.addresses().collect();
    let used: BTreeSet<u128> = seen.iter().map(|it| it.to_bits()).collect();
    (taken != used).then(|| "addresses are taken that nobody has".to_owned())
}

fn no_node_has_more_than_it_has(before: &State, after: &State) -> Option<String> {
    let memory = |state: &State, id| {
        let here = state.runtime.plan.instances.values();
        let here = here.filter(|it| it.node == id && !it.has_ended());
        here.map(|it| it.booking.memory).sum::<u64>()
    };
    for (id, node) in &after.runtime.plan.nodes {
        let (was, is) = (memory(before, *id), memory(after, *id));
        if is > was && is > node.capacity.allocatable_memory() {
            return Some(format!("{id} has {is} bytes booked"));
        }
    }
    None
}

fn no_volume_has_two_writers(state: &State) -> Option<String> {
    let plan = &state.runtime.plan;
    let mut writers = BTreeMap::new();
    for (id, instance) in &plan.instances {
        for volume in instance
            .volumes
            .iter()
            .filter(|_| plan.holds_volumes(instance))
        {
            if let Some(other) = writers.insert(*volume, *id) {
                return Some(format!("{volume} is written by {other} and {id}"));
            }
            let home = plan.volumes.get(volume).map(|volume| volume.home);
            if home.is_some_and(|home| home != instance.node) {
                return Some(format!("{id} is not where {volume} is"));
            }
        }
    }
    None
}

fn no_org_grows_above_its_quota(before: &State, after: &State) -> Option<String> {
    // What was given up counts again while its node, which is back, ends it.
    let known = &before.runtime.instances;
    let placed = after
        .runtime
        .instances
        .keys()
        .any(|id| !known.contains_key(id));
    let of_instances = [Dimension::Instances, Dimension::Memory, Dimension::Cpu];
    for org in after.runtime.orgs.keys() {
        for dimension in Dimension::ALL {
            if of_instances.contains(dimension) && !placed {
                continue;
            }
            let was = before.runtime.used(*org, *dimension);
            let is = after.runtime.used(*org, *dimension);
            let limit = after.runtime.limit(*org, *dimension);
            if is > was && is > limit {
                return Some(format!("{org} has {is} of {limit} {}", dimension.as_str()));
            }
        }
    }
    None
}

fn no_claim_is_held_twice(state: &State) -> Option<String> {
    let runtime = &state.runtime;
    let (mut hosts, mut ports) = (BTreeMap::new(), BTreeSet::new());
    for (id, route) in &runtime.routes {
        if let Some(host) = &route.hostname
            && *hosts.entry(host.clone()).or_insert(route.env) != route.env
        {
            return Some(format!("{id} has a hostname that another env has"));
        }
        let shared = (!route.ipv4_required).then_some(route.env);
        let name = route.hostname.clone();
        let of = if route.ipv4_required {
            Some(route.env)
        } else {
            None
        };
        if !ports.insert((route.listen_port, of, name)) {
            return Some(format!("{id} has a port that another has: {shared:?}"));
        }
    }
    let mut names = BTreeSet::new();
    for env in runtime.envs.values().filter(|env| env.deleted_at.is_none()) {
        if !names.insert((env.app, env.name.clone())) {
            return Some(format!("there are two envs `{}`", env.name));
        }
    }
    let mut names = BTreeSet::new();
    for volume in runtime.volumes.values() {
        if !names.insert((volume.org, volume.name.clone())) {
            return Some(format!("there are two volumes `{}`", volume.name));
        }
    }
    let active = runtime
        .routes
        .values()
        .filter(|it| it.state == RouteState::Active);
    let unproven = active.filter(|it| !it.verified).count();
    (unproven > 0).then(|| "a route serves that is not proven".to_owned())
}

fn every_group_has_one_deploy(state: &State) -> Option<String> {
    let mut seen = BTreeSet::new();
    for (id, deploy) in &state.runtime.plan.deploys {
        if deploy.state.is_final() {
            return Some(format!("{id} is final and still there"));
        }
        for group in deploy.groups.keys() {
            if !seen.insert(group.clone()) {
                return Some(format!("{group} has two deploys"));
            }
        }
    }
    None
}

fn both_sides_know_the_same(state: &State) -> Option<String> {
    let runtime = &state.runtime;
    let plan = &runtime.plan;
    let same = plan.instances.keys().eq(runtime.instances.keys())
        && plan.nodes.keys().eq(runtime.nodes.keys())
        && plan.volumes.keys().eq(runtime.volumes.keys())
        && plan.envs.keys().eq(runtime.envs.keys())
        && plan.orgs.keys().eq(runtime.orgs.keys());
    if !same {
        return Some("the planner sees other things than there are".to_owned());
    }
    for (id, instance) in &plan.instances {
        if !plan.groups.contains_key(&instance.group) {
            return Some(format!("{id} has no group"));
        }
    }
    None
}

fn simulate(seed: u64, prefix: &str, steps: u64) -> History {
    let mut history = History::new(seed, prefix);
    let mut before = history.world.state.clone();
    for step in 0..steps {
        history.step();
        let after = &history.world.state;
        if let Some(trouble) = trouble(&before, after) {
            let last = history.world.events.iter().rev().take(12);
            let last: Vec<String> = last
                .map(|event| {
                    format!(
                        "{} {} {:?}",
                        event.event_type, event.aggregate.id, event.payload
                    )
                })
                .collect();
            panic!("seed {seed}, step {step}: {trouble}\n{}", last.join("\n"));
        }
        before.clone_from(after);
        if step % 200 == 199 {
            history.world.check_fold();
        }
    }
    history
}

#[test]
fn whatever_happens_nothing_is_given_twice() {
    for seed in 0..campaign(4, 40) {
        simulate(seed, "fd00::/48", 600);
    }
}

#[test]
fn nor_where_addresses_are_few() {
    for seed in 100..100 + campaign(2, 20) {
        simulate(seed, "fd00::/110", 400);
    }
}

#[test]
fn a_long_history_has_almost_everything_in_it() {
    let history = simulate(7777, "fd00::/48", 3000);
    history.world.check_fold();
    let seen: BTreeSet<&str> = history
        .world
        .events
        .iter()
        .map(|event| event.event_type.as_str())
        .collect();
    for wanted in [
        "deploy.status_changed",
        "env.desired_release_set",
        "group.condition_changed",
        "instance.allocated",
        "instance.collected",
        "instance.status_changed",
        "node.revoked",
        "node.state_changed",
        "release.blocked",
        "route.created",
        "secret_bundle.version_set",
        "volume.state_changed",
        "volume_attachment.created",
    ] {
        assert!(seen.contains(wanted), "{wanted} never happened");
    }
    let done = history
        .outcomes
        .iter()
        .filter(|((_, code), _)| code == "done");
    let done: BTreeSet<&str> = done.map(|((id, _), _)| *id).collect();
    for wanted in [
        "createDeploy",
        "createRollback",
        "setScale",
        "restartInstance",
        "drainNode",
    ] {
        assert!(
            done.contains(wanted),
            "{wanted} never worked: {:?}",
            history.outcomes
        );
    }
}

#[test]
fn equal_seeds_give_equal_histories() {
    let hash = |seed| {
        let history = simulate(seed, "fd00::/48", 150);
        history.world.state.digests()
    };
    assert_eq!(hash(5), hash(5));
    assert_ne!(hash(5), hash(6));
}

/// Each check sees what it is there for.
mod planted {
    use super::*;

    fn planted(plant: impl Fn(&mut State) -> bool) {
        for seed in 0..20 {
            let history = simulate(seed, "fd00::/48", 250);
            let before = history.world.state.clone();
            let mut after = before.clone();
            if plant(&mut after) {
                assert!(trouble(&before, &after).is_some(), "it was not seen");
                return;
            }
        }
        panic!("there was never anything to spoil");
    }

    #[test]
    fn an_address_given_twice_is_seen() {
        planted(|state| {
            let all = &mut state.runtime.instances;
            let Some(address) = all.values().next().map(|it| it.address) else {
                return false;
            };
            let many = all.len();
            all.values_mut().for_each(|it| it.address = address);
            many > 1
        });
    }

    #[test]
    fn memory_booked_twice_is_seen() {
        planted(|state| {
            let instances = &mut state.runtime.plan.instances;
            let live = instances.values_mut().find(|it| !it.has_ended());
            live.map(|it| it.booking.memory += 1 << 40).is_some()
        });
    }

    #[test]
    fn a_second_writer_is_seen() {
        planted(|state| {
            let plan = &mut state.runtime.plan;
            let holding = plan
                .instances
                .iter()
                .find(|(_, it)| !it.volumes.is_empty() && !it.has_ended());
            let Some((id, copy)) = holding.map(|(id, it)| (*id, it.clone())) else {
                return false;
            };
            let fenced = plan.is_fenced(copy.node);
            let other = fluffy_base::id::InstanceId::from_bits(id.to_bits() + 1);
            let record = state.runtime.instances[&id].clone();
            plan.instances.insert(other, copy);
            let mut record = record;
            record.address = "fd00::ffff".parse().unwrap();
            !fenced && state.runtime.instances.insert(other, record).is_none()
        });
    }

    #[test]
    fn a_second_deploy_of_a_group_is_seen() {
        planted(|state| {
            let deploys = &mut state.runtime.plan.deploys;
            let Some((id, copy)) = deploys.iter().next().map(|(id, it)| (*id, it.clone())) else {
                return false;
            };
            let other = fluffy_base::id::DeployId::from_bits(id.to_bits() + 1);
            deploys.insert(other, copy).is_none()
        });
    }
}

#[test]
fn ten_thousand_events_fold_to_the_same_views_again() {
    let history = crate::history::history(42, 10_000);
    history.world.check_fold();
    let types: BTreeSet<&str> = history
        .world
        .events
        .iter()
        .map(|event| event.event_type.as_str())
        .collect();
    assert!(types.len() > 55, "{types:?}");
    for wanted in [
        "approval.expired",
        "approval.requested",
        "grant.added",
        "grant.removed",
        "org_member.added",
        "org_member.removed",
        "policy.version_set",
        "project.deleted",
        "service_principal.deleted",
        "service_principal.grants_updated",
        "service_principal.secret_rotated",
        "token.issued",
        "token.revoked",
    ] {
        assert!(types.contains(wanted), "{wanted} never happened");
    }
    // What is gone is not remembered: nothing asks for it any more.
    let (state, metas) = (&history.world.state, &history.world.state.metas);
    let (access, runtime) = (&state.access, &state.runtime);
    for (kind, left) in [
        ("deploy", runtime.deploys.len()),
        ("exec_session", runtime.execs.len()),
        ("grant", access.grants.len()),
        ("instance", runtime.instances.len()),
        ("org_member", access.members.len()),
        ("project", runtime.projects.len()),
        ("release", runtime.releases.len()),
        ("route", runtime.routes.len()),
        ("secret_bundle", runtime.bundles.len()),
        ("service_principal", access.services.len()),
        ("snapshot", runtime.snapshots.len()),
        ("token", access.tokens.len()),
        ("volume", runtime.volumes.len()),
        ("volume_attachment", runtime.attachments.len()),
    ] {
        let remembered = metas.get(kind).map_or(0, |metas| metas.len());
        assert_eq!(remembered, left, "{kind}");
    }
}
