//! Routes: they serve once proven and applied, and go once edges dropped them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use fluffy_base::id::{EnvId, RouteId};
use fluffy_planner::lifecycle::{Cause, InstanceStatus, RouteState};
use fluffy_planner::model::Desired;

use super::{MOST, Said};
use crate::call::{Call, Fact};
use crate::event::{RouteCreated, RouteDeleted, RouteStatusChanged, RouteUpdated, RouteVerified};
use crate::runtime::routing::DENIED;
use crate::runtime::{Runtime, record, spec};
use crate::state::{Owner, State};

/// How long edges have to drop a route.
const DROPPED: Duration = Duration::from_secs(30);

/// Where a route of this machine listens if the port itself is taken: below
/// what the kernel gives to whoever asks for any.
const OTHERS: Range<u16> = 20_000..30_000;

const BIND_FAILED: &str = "bind_failed";
const NO_BACKEND: &str = "no_ready_backend";
const REJECTED: &str = "proxy_protocol_rejected";

/// What all live edges say, as one.
pub(super) struct Edges<'a> {
    /// The lowest routing that all have; none without an edge.
    pub(super) applied: Option<u64>,
    /// What any of them cannot serve, and why.
    pub(super) problems: &'a BTreeMap<RouteId, String>,
    /// Whether one of them serves this machine.
    pub(super) loopback: bool,
}

/// Moves every route on that has somewhere to go.
pub(super) fn settle(state: &State, call: &Call<'_>, edges: &Edges<'_>) -> Said {
    let runtime = &state.runtime;
    let mut facts = Vec::new();
    let mut ports = Ports::of(runtime);
    for (id, route) in &runtime.routes {
        let known = edges.applied.is_some_and(|it| it >= route.changed_seq);
        let problem = edges.problems.get(id).filter(|_| known);
        if route.state == RouteState::Deleting {
            let since = route.deleting_since.unwrap_or(call.now);
            if known || edges.applied.is_none() || call.now.since(since) >= DROPPED {
                let deleted = RouteDeleted {
                    hostname: route.hostname.clone(),
                };
                facts.push(Fact::new(id, deleted.into()).of(&owner(route).scope()));
            }
        } else if let Some(problem) = problem {
            facts.extend(hindered(*id, route, problem, &mut ports));
        } else if let Some((to, reason)) = next(runtime, route, known) {
            facts.extend(changed(*id, route, to, reason));
        }
    }
    if edges.loopback {
        follow_deploys(runtime, call, &mut ports, &mut facts);
    }
    // Each is of a route by itself; the others follow.
    facts.truncate(MOST);
    Said::facts(facts)
}

/// Where a route goes that no edge has a problem with.
fn next(
    runtime: &Runtime,
    route: &record::Route,
    known: bool,
) -> Option<(RouteState, Option<&'static str>)> {
    let idle = route.reason.as_deref() == Some(NO_BACKEND);
    match route.state {
        RouteState::Pending if route.verified && known => Some((RouteState::Active, None)),
        RouteState::Blocked if route.is_blocked_by_edge() && known => {
            Some((RouteState::Pending, None))
        }
        RouteState::Active if !has_backend(runtime, route) => {
            Some((RouteState::Degraded, Some(NO_BACKEND)))
        }
        RouteState::Degraded if idle && has_backend(runtime, route) => {
            Some((RouteState::Active, None))
        }
        _ => None,
    }
}

/// A route that an edge cannot serve: one of this machine that nobody has seen
/// yet takes another port, any other waits until the edge can.
fn hindered(id: RouteId, route: &record::Route, problem: &str, ports: &mut Ports) -> Option<Fact> {
    if route.loopback && route.state == RouteState::Pending && problem == BIND_FAILED {
        let moved = RouteUpdated {
            listen_port: Some(ports.after(route.listen_port)?.into()),
            hostname: None,
            protocol_hint: None,
            backend_process: None,
            backend_port: None,
            proxy_protocol: None,
            backend_expects_proxy_protocol: None,
            ipv4_required: None,
        };
        return Some(Fact::new(id, moved.into()).of(&owner(route).scope()));
    }
    match route.reason.as_deref() == Some(problem) {
        true => None,
        false => changed(id, route, RouteState::Blocked, Some(problem)),
    }
}

/// Gives every declared port a way in from this machine, and takes back those
/// of ports that nothing declares any more.
fn follow_deploys(runtime: &Runtime, call: &Call<'_>, ports: &mut Ports, facts: &mut Vec<Fact>) {
    let mut wanted = declared(runtime);
    for (id, route) in runtime.routes.iter().filter(|(_, it)| it.loopback) {
        let key = (route.env, route.backend_process.clone(), route.backend_port);
        let leaves = route.state == RouteState::Deleting;
        if !wanted.remove(&key) && !leaves {
            facts.extend(changed(*id, route, RouteState::Deleting, None));
        }
    }
    for (env, process, port) in wanted {
        let (Some(at), Some(listen)) = (runtime.envs.get(&env), ports.for_port(port)) else {
            continue;
        };
        let owner = Owner {
            org: Some(at.org),
            app: Some(at.app),
            env: Some(env),
        };
        let id = RouteId::from_bits(call.mint.bits(call.now));
        let created = RouteCreated {
            hostname: None,
            listen_port: listen.into(),
            protocol_hint: "tcp_raw".to_owned(),
            backend_process: process,
            backend_port: port.into(),
            proxy_protocol: "off".to_owned(),
            backend_expects_proxy_protocol: None,
            ipv4_required: false,
            loopback: Some(true),
        };
        facts.push(Fact::new(id, created.into()).of(&owner.scope()));
    }
}

/// Every port that is to be served, or that something still serves.
fn declared(runtime: &Runtime) -> BTreeSet<(EnvId, String, u16)> {
    let live = |env: &EnvId| {
        let env = runtime.envs.get(env);
        env.is_some_and(|env| env.deleted_at.is_none())
    };
    let desired = runtime.envs.iter().flat_map(|(id, env)| {
        let desired = env.desired.iter();
        desired.map(|(process, wanted)| (*id, process.clone(), wanted.release))
    });
    let running = runtime.plan.instances.iter().filter_map(|(id, it)| {
        let release = runtime.instances.get(id)?.release;
        let ends = it.has_ended() || matches!(it.desired, Desired::Stopped { .. });
        (!ends).then(|| (it.group.env, it.group.process.to_string(), release))
    });
    let releases: BTreeSet<_> = desired.chain(running).filter(|it| live(&it.0)).collect();
    let mut declared = BTreeSet::new();
    for (env, process, release) in releases {
        let ports = runtime.process(env, release, &process).map(|it| it.ports);
        for port in ports.into_iter().flatten() {
            declared.insert((env, process.clone(), port.internal));
        }
    }
    declared
}

/// The ports that routes have.
struct Ports(BTreeSet<u16>);

impl Ports {
    fn of(runtime: &Runtime) -> Self {
        Self(runtime.routes.values().map(|it| it.listen_port).collect())
    }

    /// The same port, if no route has it.
    fn for_port(&mut self, port: u16) -> Option<u16> {
        if port > 0 && !DENIED.contains(&port) && self.0.insert(port) {
            return Some(port);
        }
        self.after(port)
    }

    /// One that no route has, and no program is given by chance.
    fn after(&mut self, port: u16) -> Option<u16> {
        let (low, many) = (OTHERS.start, OTHERS.end - OTHERS.start);
        let first = match OTHERS.contains(&port) {
            true => port - low + 1,
            false => port,
        };
        let mut all = (0..many).map(|step| low + (first % many + step) % many);
        let free = all.find(|port| !self.0.contains(port))?;
        self.0.insert(free);
        Some(free)
    }
}

/// The hostname of a route was found to be its org's.
pub(super) fn proven(state: &State, id: RouteId, method: &str) -> Said {
    let route = state.runtime.routes.get(&id);
    let waiting = route.filter(|it| !it.verified && it.state != RouteState::Deleting);
    // Another env may have been faster; then it is that one's.
    let free = waiting.filter(|it| {
        let name = it.hostname.as_deref();
        !name.is_some_and(|name| state.runtime.is_held_elsewhere(name, it.env))
    });
    let Some(route) = free else {
        return Said::default();
    };
    let verified = RouteVerified {
        method: method.to_owned(),
    };
    Said::facts(vec![
        Fact::new(id, verified.into()).of(&owner(route).scope()),
    ])
}

/// A backend took or refused the PROXY header.
pub(super) fn probed(state: &State, id: RouteId, rejected: bool) -> Said {
    let Some(route) = state.runtime.routes.get(&id) else {
        return Said::default();
    };
    let degraded = route.reason.as_deref() == Some(REJECTED);
    let fact = match (route.state, rejected) {
        (RouteState::Active, true) => changed(id, route, RouteState::Degraded, Some(REJECTED)),
        (RouteState::Degraded, false) if degraded => changed(id, route, RouteState::Active, None),
        _ => None,
    };
    Said::facts(fact.into_iter().collect())
}

fn changed(
    id: RouteId,
    route: &record::Route,
    to: RouteState,
    reason: Option<&str>,
) -> Option<Fact> {
    let cause = match (route.state, to) {
        (RouteState::Pending, RouteState::Active) => Cause::Edge,
        (_, RouteState::Deleting) => Cause::RouteWrite,
        _ => Cause::System,
    };
    RouteState::can(Some(route.state), to, cause).ok()?;
    let changed = RouteStatusChanged {
        state: to.to_string(),
        reason: reason.map(str::to_owned),
    };
    Some(Fact::new(id, changed.into()).of(&owner(route).scope()))
}

fn owner(route: &record::Route) -> Owner {
    Owner {
        org: Some(route.org),
        app: Some(route.app),
        env: Some(route.env),
    }
}

/// Whether anybody would answer.
fn has_backend(runtime: &Runtime, route: &record::Route) -> bool {
    let group = spec::group_id(route.env, &route.backend_process);
    let mut instances = runtime.plan.instances.values();
    instances.any(|it| {
        it.group == group && it.is_wanted() && it.observed.status == InstanceStatus::Ready
    })
}
