//! What routes take for themselves, and what edges shall route, as plain values.
//!
//! Derived from state and nothing else; whoever sends it turns it into messages.
//! Always the whole of it, never a difference. A name that is not proven to be
//! its owner's is never in it, and neither are two routes with one claim.

use std::net::{Ipv4Addr, Ipv6Addr};

use fluffy_base::id::{EnvId, InstanceId, ReleaseId, RouteId};
use fluffy_planner::lifecycle::{InstanceStatus, RouteState};

use super::{Runtime, record, spec};

/// Ports that are never opened: telnet, mail, and the old Windows shares.
pub(crate) const DENIED: [u16; 5] = [23, 25, 137, 138, 139];

/// Ports of the addresses that all envs share which are nobody's alone: there
/// connections are told apart by names, or have an address of their own.
pub(crate) const SHARED: [u16; 2] = [80, 443];

/// What a route takes for itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim<'a> {
    /// Of which env.
    pub(crate) env: EnvId,
    /// The public port.
    pub(crate) port: u16,
    /// What tells its connections apart; without it the whole port is taken.
    pub(crate) name: Option<&'a str>,
    /// Whether it needs its env's own address.
    pub(crate) ipv4_required: bool,
    /// Whether the platform made it, for this machine only.
    pub(crate) loopback: bool,
}

/// The addresses that a route is listened for at.
#[derive(Debug, Clone, Copy)]
struct Listeners {
    /// Those that all envs share.
    shared: bool,
    /// The public address of one env, whichever that is.
    own: Option<EnvId>,
    /// This machine's own, where it has an edge.
    here: bool,
}

impl Claim<'_> {
    /// Whether it takes a shared port that is nobody's alone.
    pub(crate) fn is_greedy(&self) -> bool {
        self.name.is_none() && self.listeners().shared && SHARED.contains(&self.port)
    }

    /// Whether no edge could serve both.
    ///
    /// One name in two envs is no matter of ports: it is whose who proves it.
    pub(crate) fn meets(&self, other: &Claim<'_>) -> bool {
        let (one, two) = (self.listeners(), other.listeners());
        let own = one.own.is_some() && one.own == two.own;
        let at_one = (one.shared && two.shared) || own || (one.here && two.here);
        let told_apart = match (self.name, other.name) {
            (Some(name), Some(another)) => name != another || self.env != other.env,
            _ => false,
        };
        self.port == other.port && at_one && !told_apart
    }

    fn listeners(&self) -> Listeners {
        let tls = self.name.is_some();
        // What is told apart by names is so at its env's own address as well.
        // An edge of this machine serves here what all share.
        let raw = !tls && !self.loopback;
        Listeners {
            shared: tls || (raw && !self.ipv4_required),
            own: (tls || (raw && self.ipv4_required)).then_some(self.env),
            here: self.loopback || (raw && !self.ipv4_required),
        }
    }
}

/// Everything that edges shall route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeConfig {
    /// The event that it follows from.
    pub config_seq: u64,
    /// The routes.
    pub routes: Vec<EdgeRoute>,
}

/// A route with those who answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeRoute {
    /// Which.
    pub id: RouteId,
    /// Where.
    pub env: EnvId,
    /// The name that it answers to.
    pub hostname: Option<String>,
    /// The public port.
    pub listen_port: u16,
    /// `tls_passthrough` or `tcp_raw`.
    pub protocol_hint: String,
    /// `off` or `v2`.
    pub proxy_protocol: String,
    /// The env's public address, if it is listened for there.
    pub ipv4: Option<Ipv4Addr>,
    /// The port that instances answer on.
    pub backend_port: u16,
    /// The instances that are ready, and those on their way out.
    pub backends: Vec<Backend>,
}

/// An instance behind a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// Which.
    pub instance: InstanceId,
    /// Where it is.
    pub address: Ipv6Addr,
    /// Whether it takes no new connections.
    pub draining: bool,
}

impl record::Route {
    /// What it takes for itself.
    pub(crate) fn claim(&self) -> Claim<'_> {
        let tls = self.protocol_hint == "tls_passthrough";
        Claim {
            env: self.env,
            port: self.listen_port,
            name: self.hostname.as_deref().filter(|_| tls),
            ipv4_required: self.ipv4_required,
            loopback: self.loopback,
        }
    }
}

impl Runtime {
    /// Everything that edges shall route.
    #[must_use]
    pub fn edge_config(&self) -> EdgeConfig {
        let routes = self.routes.iter().filter(|(_, route)| {
            let served = match route.state {
                RouteState::Deleting => false,
                // What an edge could not do it tries again.
                RouteState::Blocked => route.is_blocked_by_edge(),
                _ => true,
            };
            route.verified && served
        });
        EdgeConfig {
            config_seq: self.routing_seq,
            routes: routes
                .map(|(id, route)| self.edge_route(*id, route))
                .collect(),
        }
    }

    /// Whether a name is proven to be another env's: then it is nobody else's.
    pub(crate) fn is_held_elsewhere(&self, hostname: &str, env: EnvId) -> bool {
        self.routes.values().any(|route| {
            route.env != env && route.verified && route.hostname.as_deref() == Some(hostname)
        })
    }

    fn declares(&self, route: &record::Route, release: ReleaseId) -> bool {
        let process = self.process(route.env, release, &route.backend_process);
        process.is_some_and(|it| it.ports.iter().any(|it| it.internal == route.backend_port))
    }

    fn edge_route(&self, id: RouteId, route: &record::Route) -> EdgeRoute {
        let group = spec::group_id(route.env, &route.backend_process);
        let own = self.plan.instances.iter();
        let own =
            own.filter(|(_, it)| it.group == group && it.observed.status == InstanceStatus::Ready);
        let backends = own.filter_map(|(id, it)| {
            let record = self.instances.get(id)?;
            // Ports come and go with releases; others are held by their routes.
            if route.loopback && !self.declares(route, record.release) {
                return None;
            }
            Some(Backend {
                instance: *id,
                address: record.address,
                draining: !it.is_wanted(),
            })
        });
        let env = self.envs.get(&route.env);
        let at_own = route.claim().listeners().own.is_some();
        EdgeRoute {
            id,
            env: route.env,
            hostname: route.hostname.clone(),
            listen_port: route.listen_port,
            protocol_hint: route.protocol_hint.clone(),
            proxy_protocol: route.proxy_protocol.clone(),
            ipv4: env.filter(|_| at_own).and_then(|env| Some(env.ipv4?.1)),
            backend_port: route.backend_port,
            backends: backends.collect(),
        }
    }
}
