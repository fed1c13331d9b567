//! Nodes: how they join, where they stand, what they have.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv6Addr;
use std::time::Duration;

use fluffy_base::id::NodeId;
use fluffy_planner::lifecycle::NodeState;
use fluffy_planner::model::{self as planner, Capacity, Drain, DriverLimits, Stateful};

use super::{At, keep};
use crate::event::{Body, NodeDriver, NodeEnrolled, NodeStateChanged};
use crate::runtime::record::{DrainRecord, EnrollmentRequest, EnrollmentToken, Node};
use crate::runtime::{Runtime, spec};

/// How long a drain lasts at most where nobody said it.
const DRAIN: Duration = Duration::from_secs(3600);

pub(super) fn apply(runtime: &mut Runtime, at: &At<'_>, body: &Body) {
    let _ = token(runtime, at, body);
    let _ = node(runtime, at, body);
}

fn token(runtime: &mut Runtime, at: &At<'_>, body: &Body) -> Option<()> {
    match body {
        Body::EnrollmentTokenCreated(it) => {
            let token = EnrollmentToken {
                expires_at: it.expires_at,
                created_by: at.actor(),
                ended: None,
                node: None,
                allow_nat: it.allow_nat.unwrap_or_default(),
                replaces: it.replaces,
                made_for: at.on_behalf_of(),
                labels: BTreeMap::new(),
                require_approval: false,
                request: None,
            };
            runtime.enrollment_tokens.insert(at.id()?, token);
        }
        Body::EnrollmentTokenTermsSet(it) => {
            let token = runtime.enrollment_tokens.get_mut(&at.id()?)?;
            token.labels.clone_from(&it.labels);
            token.require_approval = it.require_approval;
        }
        Body::EnrollmentTokenRequested(it) => {
            let token = runtime.enrollment_tokens.get_mut(&at.id()?)?;
            token.request = Some(EnrollmentRequest {
                key: it.key_fingerprint.clone(),
                endpoint: it.endpoint.clone(),
                arch: it.arch.clone(),
                agent_version: it.agent_version.clone(),
                asked_at: at.now(),
                decided: None,
            });
        }
        Body::EnrollmentTokenDecided(it) => {
            let token = runtime.enrollment_tokens.get_mut(&at.id()?)?;
            let request = token.request.as_mut();
            let request = request.filter(|request| request.key == it.key_fingerprint)?;
            request.decided = Some((it.outcome.clone(), it.by.clone()));
        }
        Body::EnrollmentTokenConsumed(it) => {
            let id = at.id()?;
            let token = runtime.enrollment_tokens.get_mut(&id)?;
            token.ended = Some("consumed".to_owned());
            token.node = it.node_id;
            let ended = &mut runtime.finished.tokens;
            if let Some(oldest) = keep(&mut runtime.enrollment_tokens, ended, id) {
                at.forget("enrollment_token", oldest);
            }
        }
        Body::EnrollmentTokenRevoked(_) => {
            let id = at.id()?;
            let token = runtime.enrollment_tokens.get_mut(&id)?;
            token.ended = Some("revoked".to_owned());
            let ended = &mut runtime.finished.tokens;
            if let Some(oldest) = keep(&mut runtime.enrollment_tokens, ended, id) {
                at.forget("enrollment_token", oldest);
            }
        }
        _ => {}
    }
    Some(())
}

fn node(runtime: &mut Runtime, at: &At<'_>, body: &Body) -> Option<()> {
    match body {
        Body::NodeEnrolled(it) => return enrolled(runtime, at, it),
        Body::NodeStateChanged(it) => changed(runtime, at, it)?,
        Body::NodeDrainBlocked(it) => {
            let plan = runtime.plan.nodes.get_mut(&at.id()?)?;
            plan.drain.as_mut()?.blockers = it.instances.iter().copied().collect();
        }
        Body::NodeCapacityUpdated(it) => {
            let id: NodeId = at.id()?;
            let record = runtime.nodes.get_mut(&id)?;
            (record.disk, record.measured) = (it.disk_bytes, true);
            let plan = runtime.plan.nodes.get_mut(&id)?;
            plan.capacity.cores = it.cpu_cores;
            plan.capacity.memory = it.memory_bytes;
            if let Some(drivers) = &it.drivers {
                plan.drivers = limits(drivers);
            }
            let record = runtime.nodes.get_mut(&id)?;
            if let Some(drivers) = &it.drivers {
                record.drivers.clone_from(drivers);
            }
            if let Some(version) = &it.agent_version {
                record.agent_version.clone_from(version);
            }
            disk(runtime, id);
        }
        Body::NodePlanHeld(it) => {
            let record = runtime.nodes.get_mut(&at.id()?)?;
            record.held = it.held.clone().map(|held| (held, false));
        }
        Body::NodePlanConfirmed(_) => {
            let record = runtime.nodes.get_mut(&at.id()?)?;
            record.held.as_mut()?.1 = true;
        }
        Body::NodeCertRotated(it) => {
            let record = runtime.nodes.get_mut(&at.id()?)?;
            let former = std::mem::replace(&mut record.cert_fingerprint, it.fingerprint.clone());
            record.former_fingerprint = Some(former);
        }
        Body::NodeOverlayKeyRotated(it) => {
            let record = runtime.nodes.get_mut(&at.id()?)?;
            record.wireguard_public_key.clone_from(&it.fingerprint);
        }
        Body::NodeRevoked(it) => {
            let id: NodeId = at.id()?;
            runtime.nodes.get_mut(&id)?.reason = Some(it.reason.clone());
            leave(runtime, at, id, NodeState::Revoked)?;
        }
        Body::NodeRemoved(_) => {
            let id: NodeId = at.id()?;
            leave(runtime, at, id, NodeState::Removed)?;
        }
        _ => return None,
    }
    runtime.plan.nodes.get_mut(&at.id()?)?.version = at.seq();
    Some(())
}

fn enrolled(runtime: &mut Runtime, at: &At<'_>, it: &NodeEnrolled) -> Option<()> {
    let id: NodeId = at.id()?;
    let address: Ipv6Addr = it.overlay_ipv6.parse().ok()?;
    let plan = planner::Node {
        version: at.seq(),
        state: NodeState::Enrolled,
        arch: spec::arch(&it.arch)?,
        drivers: limits(&it.drivers),
        capacity: Capacity {
            cores: 0,
            memory: 0,
            disk: 0,
        },
        images: BTreeSet::new(),
        host_failures: Vec::new(),
        drain: None,
    };
    let record = Node {
        endpoint: it.endpoint.clone(),
        wireguard_public_key: it.wireguard_public_key.clone(),
        cert_fingerprint: it.cert_fingerprint.clone(),
        former_fingerprint: None,
        address,
        drivers: it.drivers.clone(),
        labels: it.labels.clone(),
        agent_version: it.agent_version.clone(),
        disk: 0,
        measured: false,
        enrolled_at: at.now(),
        reason: None,
        held: None,
        machine: it.machine_fingerprint.clone(),
        former: None,
        drain: None,
        failures: VecDeque::new(),
    };
    runtime.ipam.nodes.take(address.to_bits(), at.now());
    runtime.plan.nodes.insert(id, plan);
    runtime.nodes.insert(id, record);
    Some(())
}

/// What instances may have by each driver that is known.
fn limits(drivers: &[NodeDriver]) -> BTreeMap<planner::Driver, DriverLimits> {
    let known = drivers.iter().filter_map(|driver| {
        let limits = DriverLimits {
            vcpus: driver.max_vcpus,
            memory: driver.max_memory_bytes,
        };
        Some((spec::driver(&driver.driver)?, limits))
    });
    known.collect()
}

fn changed(runtime: &mut Runtime, at: &At<'_>, it: &NodeStateChanged) -> Option<()> {
    let id: NodeId = at.id()?;
    let to = NodeState::parse(&it.state)?;
    let stateful = match it.leave_stateful {
        Some(true) => Stateful::Stays,
        _ => Stateful::Blocks,
    };
    let found = it.drain_id.map(|_| runtime.left_to_move(id, stateful));
    let plan = runtime.plan.nodes.get_mut(&id)?;
    let record = runtime.nodes.get_mut(&id)?;
    let from = plan.state;
    plan.state = to;
    record.reason.clone_from(&it.reason);
    record.former = (to == NodeState::Offline).then_some(from);
    runtime.routing_seq = at.seq();
    let drains = matches!(to, NodeState::Draining | NodeState::Drained);
    if to == NodeState::Draining && from != NodeState::Offline {
        plan.drain = Some(Drain {
            deadline: it.deadline.unwrap_or_else(|| at.now().after(DRAIN)),
            stateful,
            blockers: BTreeSet::new(),
        });
        if let Some(drain) = it.drain_id {
            record.drain = Some(drain);
            let drain_record = DrainRecord {
                node: id,
                total: found.unwrap_or_default(),
                started_at: at.now(),
                updated_at: at.now(),
                ended: None,
            };
            runtime.drains.insert(drain, drain_record);
        }
    } else if !drains && to != NodeState::Offline {
        plan.drain = None;
        end_drain(runtime, at, id, "canceled");
    } else if to == NodeState::Drained {
        end_drain(runtime, at, id, "succeeded");
    }
    Some(())
}

fn end_drain(runtime: &mut Runtime, at: &At<'_>, node: NodeId, how: &str) -> Option<()> {
    let id = runtime.nodes.get_mut(&node)?.drain.take()?;
    let drain = runtime.drains.get_mut(&id)?;
    (drain.ended, drain.updated_at) = (Some(how.to_owned()), at.now());
    keep(&mut runtime.drains, &mut runtime.finished.drains, id);
    Some(())
}

/// A node is out for good: its range may rest, and nothing on it counts.
fn leave(runtime: &mut Runtime, at: &At<'_>, id: NodeId, to: NodeState) -> Option<()> {
    runtime.plan.nodes.get_mut(&id)?.state = to;
    let address = runtime.nodes.get(&id)?.address;
    runtime.ipam.forget_node(address, at.now());
    runtime.routing_seq = at.seq();
    end_drain(runtime, at, id, "canceled");
    Some(())
}

/// What a node has for scratch disks: what it said, less its volumes.
pub(super) fn disk(runtime: &mut Runtime, id: NodeId) {
    let volumes = &runtime.volumes;
    let here = runtime.plan.volumes.iter().filter(|(_, it)| it.home == id);
    let sizes = here.filter_map(|(volume, _)| Some(volumes.get(volume)?.size));
    let taken = sizes.fold(0, u64::saturating_add);
    if let Some((record, plan)) = runtime.nodes.get(&id).zip(runtime.plan.nodes.get_mut(&id)) {
        plan.capacity.disk = record.disk.saturating_sub(taken);
    }
}
