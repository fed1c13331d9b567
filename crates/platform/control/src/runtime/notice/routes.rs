//! Routes: they serve once proven and applied, and go once edges dropped them.

use std::time::Duration;

use fluffy_base::id::RouteId;
use fluffy_planner::lifecycle::{Cause, InstanceStatus, RouteState};

use super::Said;
use crate::call::{Call, Fact};
use crate::event::{RouteDeleted, RouteStatusChanged, RouteVerified};
use crate::runtime::{Runtime, record, spec};
use crate::state::{Owner, State};

/// How long edges have to drop a route.
const DROPPED: Duration = Duration::from_secs(30);

const NO_BACKEND: &str = "no_ready_backend";
const REJECTED: &str = "proxy_protocol_rejected";

/// Moves every route on that has somewhere to go.
pub(super) fn settle(state: &State, call: &Call<'_>, applied: Option<u64>) -> Said {
    let runtime = &state.runtime;
    let mut facts = Vec::new();
    for (id, route) in &runtime.routes {
        let known = applied.is_some_and(|applied| applied >= route.changed_seq);
        let to = match route.state {
            RouteState::Pending if route.verified && known => Some((RouteState::Active, None)),
            RouteState::Active if !has_backend(runtime, route) => {
                Some((RouteState::Degraded, Some(NO_BACKEND)))
            }
            RouteState::Degraded
                if route.reason.as_deref() == Some(NO_BACKEND) && has_backend(runtime, route) =>
            {
                Some((RouteState::Active, None))
            }
            RouteState::Deleting => {
                let since = route.deleting_since.unwrap_or(call.now);
                if known || applied.is_none() || call.now.since(since) >= DROPPED {
                    let deleted = RouteDeleted {
                        hostname: route.hostname.clone(),
                    };
                    facts.push(Fact::new(id, deleted.into()).of(&owner(route).scope()));
                }
                None
            }
            _ => None,
        };
        if let Some((to, reason)) = to {
            facts.extend(changed(*id, route, to, reason));
        }
    }
    Said::facts(facts)
}

/// The hostname of a route was found to be its org's.
pub(super) fn proven(state: &State, id: RouteId, method: &str) -> Said {
    let route = state.runtime.routes.get(&id);
    let waiting = route.filter(|it| !it.verified && it.state != RouteState::Deleting);
    let Some(route) = waiting else {
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
