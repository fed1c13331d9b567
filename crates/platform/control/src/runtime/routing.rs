//! What edges shall route, as plain values.
//!
//! Derived from state and nothing else; whoever sends it turns it into messages.
//! Always the whole of it, never a difference. A name that is not proven to be
//! its owner's is never in it.

use std::net::{Ipv4Addr, Ipv6Addr};

use fluffy_base::id::{EnvId, InstanceId, ReleaseId, RouteId};
use fluffy_planner::lifecycle::{InstanceStatus, RouteState};

use super::{Runtime, record, spec};

/// Ports that are never opened: telnet, mail, and the old Windows shares.
pub(crate) const DENIED: [u16; 5] = [23, 25, 137, 138, 139];

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
    /// The env's public address.
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
        EdgeRoute {
            id,
            env: route.env,
            hostname: route.hostname.clone(),
            listen_port: route.listen_port,
            protocol_hint: route.protocol_hint.clone(),
            proxy_protocol: route.proxy_protocol.clone(),
            ipv4: self.envs.get(&route.env).and_then(|env| Some(env.ipv4?.1)),
            backend_port: route.backend_port,
            backends: backends.collect(),
        }
    }
}
