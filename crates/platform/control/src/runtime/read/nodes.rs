//! Nodes, permissions to join, addresses and keys.

use std::collections::BTreeMap;

use fluffy_api::types::{self, NodeCapacity, NodeUse, Pool};
use fluffy_base::id::{EnrollmentTokenId, NodeId};
use serde_json::Value;

use super::{Asked, View, count, isolation};
use crate::refusal::Refusal;
use crate::runtime::{retires_from, spec, still_asked};

impl View<'_> {
    pub(super) fn node(&self, id: NodeId) -> Option<types::Node> {
        let runtime = self.runtime();
        let node = runtime.plan.nodes.get(&id)?;
        let record = runtime.nodes.get(&id)?;
        let drivers: Vec<_> = node.drivers.keys().map(|it| isolation(*it)).collect();
        let capacity = record.measured.then(|| NodeCapacity {
            cpu_cores: node.capacity.cores,
            memory_bytes: node.capacity.memory,
            allocatable_memory_bytes: node.capacity.allocatable_memory(),
            disk_bytes: record.disk,
        });
        Some(types::Node {
            meta: self.meta("node", id)?,
            status: node.state.to_string(),
            reason: record.reason.clone().or_else(|| {
                let held = record.held.as_ref();
                held.map(|_| "plan_held".to_owned())
            }),
            isolation: drivers.first().cloned(),
            drivers,
            arch: spec::arch_text(node.arch).to_owned(),
            endpoint: record.endpoint.clone(),
            overlay_ipv6: record.address.to_string(),
            agent_version: record.agent_version.clone(),
            labels: record.labels.clone(),
            capacity,
            used: self.node_use(id),
            last_heartbeat_at: None,
            drain: record.drain.and_then(|drain| self.drain(drain)),
            plan_held: record.held.as_ref().map(|(held, _)| held.clone()),
        })
    }

    fn node_use(&self, id: NodeId) -> NodeUse {
        let plan = &self.runtime().plan;
        let here = plan.instances.values();
        let here = here.filter(|it| it.node == id && !it.has_ended());
        let mut used = NodeUse::default();
        for instance in here {
            used.instances = used.instances.saturating_add(1);
            used.cpu_millis = used.cpu_millis.saturating_add(instance.booking.cpu_millis);
            used.memory_bytes = used.memory_bytes.saturating_add(instance.booking.memory);
            used.disk_bytes = used.disk_bytes.saturating_add(instance.booking.disk);
        }
        used.volumes = count(plan.volumes.values().filter(|it| it.home == id).count());
        used
    }

    pub(super) fn enrollment_token(&self, id: EnrollmentTokenId) -> Option<types::EnrollmentToken> {
        let token = self.runtime().enrollment_tokens.get(&id)?;
        let expired = token.expires_at <= self.now;
        let decided = token.request.as_ref().map(|it| it.decided.as_ref());
        let status = match (&token.ended, expired, decided) {
            (Some(ended), _, _) => ended,
            (None, true, _) => "expired",
            (None, false, None) => "pending",
            (None, false, Some(None)) => "waiting",
            (None, false, Some(Some((decided, _)))) => decided,
        };
        let request = token.request.as_ref().map(|it| types::EnrollmentRequest {
            key_fingerprint: it.key.clone(),
            endpoint: it.endpoint.clone(),
            arch: it.arch.clone(),
            agent_version: it.agent_version.clone(),
            asked_at: it.asked_at,
            outcome: it.decided.as_ref().map(|(outcome, _)| outcome.clone()),
            decided_by: it.decided.as_ref().map(|(_, by)| by.clone()),
        });
        Some(types::EnrollmentToken {
            meta: self.meta("enrollment_token", id)?,
            status: status.to_owned(),
            expires_at: token.expires_at,
            created_by: token.created_by.clone(),
            node_id: token.node,
            labels: token.labels.clone(),
            require_approval: token.require_approval,
            request,
        })
    }

    pub(super) fn ipam(&self) -> types::Ipam {
        let ipam = &self.runtime().ipam;
        let pools = ipam.uses(self.now).map(|it| {
            let public = ipam.public.iter().map(|(from, to)| format!("{from}-{to}"));
            let prefixes = match it.category {
                "ipv4" => public.collect(),
                _ => ipam.prefix.iter().map(ToString::to_string).collect(),
            };
            let pool = Pool {
                prefixes,
                size: it.size,
                used: it.taken,
                cooling: it.resting,
            };
            (it.category.to_owned(), pool)
        });
        types::Ipam {
            pools: BTreeMap::from(pools),
        }
    }

    pub(super) fn image_limits(&self) -> types::ImageLimits {
        let cluster = &self.runtime().cluster;
        let limits = types::IMAGE_LIMITS.iter().map(|kind| {
            let limit = types::ImageLimit {
                limit: cluster.image_limit(kind),
                usual: kind.usual,
                ceiling: kind.ceiling,
            };
            (kind.name.to_owned(), limit)
        });
        types::ImageLimits {
            limits: limits.collect(),
        }
    }

    pub(super) fn keys(&self) -> types::Keys {
        let runtime = self.runtime();
        let keys = &runtime.cluster.keys;
        let live = keys.iter().filter(|(_, key)| key.retired_at.is_none());
        let current = live.max_by_key(|(_, key)| key.introduced_at);
        let current = current.map(|(id, _)| *id);
        let shown = keys.iter().map(|(id, key)| {
            let versions = runtime.bundles.values().flat_map(|it| &it.versions);
            let versions = versions.filter(|version| version.master_key == *id);
            types::MasterKey {
                id: id.to_string(),
                status: match (key.retired_at, current == Some(*id)) {
                    (Some(_), _) => "retired",
                    (None, true) => "current",
                    (None, false) => "previous",
                }
                .to_owned(),
                // What this server has is the server's to say.
                available: key.retired_at.is_none(),
                versions: u64::try_from(versions.count()).unwrap_or(u64::MAX),
                introduced_at: key.introduced_at,
                retires_from: runtime.cluster.replaced_at(*id).map(retires_from),
                retire_asked_by: still_asked(key, self.now).map(str::to_owned),
                retired_at: key.retired_at,
            }
        });
        types::Keys {
            keys: shown.collect(),
            current_key_id: current.map(|id| id.to_string()),
        }
    }
}

impl Asked<'_> {
    pub(super) fn nodes(&self) -> Result<Value, Refusal> {
        let ids = self.view.runtime().plan.nodes.keys().copied();
        self.page("node", ids, View::node)
    }

    pub(super) fn enrollment_tokens(&self) -> Result<Value, Refusal> {
        let ids = self.view.runtime().enrollment_tokens.keys().copied();
        self.page("enrollment_token", ids, View::enrollment_token)
    }
}
