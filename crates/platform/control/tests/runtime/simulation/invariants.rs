//! What must always hold, whatever happens. Each looks at the truth, and
//! counts in its own way.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_control::State;
use fluffy_control::runtime::quota::Dimension;
use fluffy_control::runtime::record::IPV4_MISSING;
use fluffy_planner::lifecycle::RouteState;

/// Looks at what was before, and at what is now.
type Holds = fn(&State, &State) -> Result<(), String>;
pub(super) type Invariant = (&'static str, Holds);

macro_rules! invariants {
    ($($name:ident,)*) => {
        pub(super) const INVARIANTS: &[Invariant] = &[$((stringify!($name), $name)),*];
    };
}

invariants! {
    invariant_no_address_is_given_twice,
    invariant_no_node_gives_more_than_it_has,
    invariant_a_volume_has_one_writer,
    invariant_no_org_grows_above_its_quota,
    invariant_no_name_is_taken_twice,
    invariant_a_hostname_is_one_envs,
    invariant_a_port_is_one_routes,
    invariant_what_serves_is_proven,
    invariant_edges_can_serve_the_whole_table,
    invariant_what_waits_for_an_address_needs_one,
    invariant_every_group_has_one_deploy,
    invariant_both_sides_know_the_same,
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

fn invariant_no_address_is_given_twice(_: &State, after: &State) -> Result<(), String> {
    let runtime = &after.runtime;
    let mut seen = BTreeSet::new();
    for (id, instance) in &runtime.instances {
        ensure(seen.insert(instance.address), || {
            format!("{id} has an address that another has")
        })?;
    }
    let taken: BTreeSet<u128> = runtime.ipam.instances.addresses().collect();
    let used: BTreeSet<u128> = seen.iter().map(|it| it.to_bits()).collect();
    ensure(taken == used, || {
        "addresses are taken that nobody has".to_owned()
    })
}

fn invariant_no_node_gives_more_than_it_has(before: &State, after: &State) -> Result<(), String> {
    let memory = |state: &State, id| {
        let here = state.runtime.plan.instances.values();
        let here = here.filter(|it| it.node == id && !it.has_ended());
        here.map(|it| it.booking.memory).sum::<u64>()
    };
    for (id, node) in &after.runtime.plan.nodes {
        let (was, is) = (memory(before, *id), memory(after, *id));
        let fits = is <= was || is <= node.capacity.allocatable_memory();
        ensure(fits, || format!("{id} has {is} bytes booked"))?;
    }
    Ok(())
}

fn invariant_a_volume_has_one_writer(_: &State, after: &State) -> Result<(), String> {
    let plan = &after.runtime.plan;
    let mut writers = BTreeMap::new();
    for (id, instance) in &plan.instances {
        for volume in instance
            .volumes
            .iter()
            .filter(|_| plan.holds_volumes(instance))
        {
            let other = writers.insert(*volume, *id);
            ensure(other.is_none(), || {
                format!("{volume} is written by {other:?} and {id}")
            })?;
            let home = plan.volumes.get(volume).map(|volume| volume.home);
            ensure(home.is_none_or(|home| home == instance.node), || {
                format!("{id} is not where {volume} is")
            })?;
        }
    }
    Ok(())
}

fn invariant_no_org_grows_above_its_quota(before: &State, after: &State) -> Result<(), String> {
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
            ensure(is <= was || is <= limit, || {
                format!("{org} has {is} of {limit} {}", dimension.as_str())
            })?;
        }
    }
    Ok(())
}

fn invariant_no_name_is_taken_twice(_: &State, after: &State) -> Result<(), String> {
    let runtime = &after.runtime;
    let mut names = BTreeSet::new();
    for env in runtime.envs.values().filter(|env| env.deleted_at.is_none()) {
        ensure(names.insert((env.app, env.name.clone())), || {
            format!("there are two envs `{}`", env.name)
        })?;
    }
    let mut names = BTreeSet::new();
    for volume in runtime.volumes.values() {
        ensure(names.insert((volume.org, volume.name.clone())), || {
            format!("there are two volumes `{}`", volume.name)
        })?;
    }
    Ok(())
}

fn invariant_a_hostname_is_one_envs(_: &State, after: &State) -> Result<(), String> {
    let mut hosts = BTreeMap::new();
    for (id, route) in after.runtime.routes.iter().filter(|(_, it)| it.verified) {
        if let Some(host) = &route.hostname {
            let holder = *hosts.entry(host.clone()).or_insert(route.env);
            ensure(holder == route.env, || {
                format!("{id} has a hostname that another env has")
            })?;
        }
    }
    Ok(())
}

/// Who is at which address and port: by names there, or alone.
#[derive(Default)]
struct Places(BTreeMap<(String, u16), BTreeSet<Option<String>>>);

impl Places {
    /// Whether a place is free for this name, or as a whole; then it is taken.
    fn take(&mut self, address: &str, port: u16, name: Option<String>) -> bool {
        let there = self.0.entry((address.to_owned(), port)).or_default();
        let free = match &name {
            Some(_) => !there.contains(&None),
            None => there.is_empty(),
        };
        free && there.insert(name)
    }
}

fn invariant_a_port_is_one_routes(_: &State, after: &State) -> Result<(), String> {
    let mut places = Places::default();
    for (id, route) in &after.runtime.routes {
        let (port, own) = (route.listen_port, route.env.to_string());
        // Whose a name is that two envs ask for is another invariant's.
        let host = route.hostname.as_ref().map(|host| format!("{own} {host}"));
        let free = match (route.protocol_hint.as_str(), route.ipv4_required) {
            ("tls_passthrough", _) => {
                places.take("shared", port, host.clone()) && places.take(&own, port, host)
            }
            (_, true) => places.take(&own, port, None),
            // Nobody has these alone.
            (_, false) => !matches!(port, 80 | 443) && places.take("shared", port, None),
        };
        ensure(free, || format!("{id} has port {port}, which another has"))?;
    }
    Ok(())
}

fn invariant_what_serves_is_proven(_: &State, after: &State) -> Result<(), String> {
    for (id, route) in &after.runtime.routes {
        let serves = matches!(route.state, RouteState::Active | RouteState::Degraded);
        ensure(route.verified || !serves, || {
            format!("{id} is {} and not proven", route.state)
        })?;
    }
    let table = after.runtime.edge_config();
    for route in &table.routes {
        let proven = after.runtime.routes[&route.id].verified;
        ensure(proven, || format!("edges are told of {}", route.id))?;
    }
    Ok(())
}

/// No two routes have one place, of an address that the table names or of
/// those that all share; and none has lost the address that it needs.
fn invariant_edges_can_serve_the_whole_table(_: &State, after: &State) -> Result<(), String> {
    let mut places = Places::default();
    for route in after.runtime.edge_config().routes {
        let (id, port) = (route.id, route.listen_port);
        let own = route.ipv4.map(|ipv4| ipv4.to_string());
        let needs = after.runtime.routes[&id].ipv4_required;
        ensure(!needs || own.is_some(), || {
            format!("{id} is told without its address")
        })?;
        let free = match (route.protocol_hint.as_str(), own) {
            ("tls_passthrough", own) => {
                let mut at = own.iter().map(String::as_str).chain([""]);
                at.all(|at| places.take(at, port, route.hostname.clone()))
            }
            (_, own) => places.take(&own.unwrap_or_default(), port, None),
        };
        ensure(free, || {
            format!("{id} is told for port {port}, which another has")
        })?;
    }
    Ok(())
}

fn invariant_what_waits_for_an_address_needs_one(_: &State, after: &State) -> Result<(), String> {
    let waiting = after.runtime.routes.iter();
    let waiting = waiting.filter(|(_, it)| it.reason.as_deref() == Some(IPV4_MISSING));
    for (id, route) in waiting {
        let has = after.runtime.envs[&route.env].ipv4.is_some();
        ensure(route.ipv4_required && !has, || {
            format!("{id} waits for an address")
        })?;
    }
    Ok(())
}

fn invariant_every_group_has_one_deploy(_: &State, after: &State) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for (id, deploy) in &after.runtime.plan.deploys {
        ensure(!deploy.state.is_final(), || {
            format!("{id} is final and still there")
        })?;
        for group in deploy.groups.keys() {
            ensure(seen.insert(group.clone()), || {
                format!("{group} has two deploys")
            })?;
        }
    }
    Ok(())
}

fn invariant_both_sides_know_the_same(_: &State, after: &State) -> Result<(), String> {
    let runtime = &after.runtime;
    let plan = &runtime.plan;
    let same = plan.instances.keys().eq(runtime.instances.keys())
        && plan.nodes.keys().eq(runtime.nodes.keys())
        && plan.volumes.keys().eq(runtime.volumes.keys())
        && plan.envs.keys().eq(runtime.envs.keys())
        && plan.orgs.keys().eq(runtime.orgs.keys());
    ensure(same, || {
        "the planner sees other things than there are".to_owned()
    })?;
    for (id, instance) in &plan.instances {
        let known = plan.groups.contains_key(&instance.group);
        ensure(known, || format!("{id} has no group"))?;
    }
    Ok(())
}
