//! Instances and groups: what was placed, what is wanted, what nodes say.

use std::collections::VecDeque;
use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_base::id::InstanceId;
use fluffy_planner::lifecycle::{DesiredState, InstanceStatus};
use fluffy_planner::model::{self as planner, Desired, GroupId, Observed, Replaced, Resources};
use fluffy_planner::place::FAILURE_WINDOW;
use fluffy_planner::reason::{Condition, DrainReason, FailureClass, FailureReason, StopReason};

use super::{At, tenancy};
use crate::event::{Body, InstanceAllocated, InstanceDesiredStateChanged, InstanceStatusChanged};
use crate::runtime::ipam::REST;
use crate::runtime::record::{Instance, LastError};
use crate::runtime::{Runtime, spec};

/// The window in which changes of an instance's status are counted.
const FLAP_WINDOW: Duration = Duration::from_secs(60);

pub(super) fn apply(runtime: &mut Runtime, at: &At<'_>, body: &Body) {
    let _ = match body {
        Body::InstanceAllocated(it) => allocated(runtime, at, it),
        Body::InstanceDesiredStateChanged(it) => wanted(runtime, at, it),
        Body::InstanceStatusChanged(it) => observed(runtime, at, it),
        Body::InstanceCollected(_) => collected(runtime, at),
        Body::GroupConditionChanged(_) | Body::InstanceAllocationFailed(_) => {
            group(runtime, at, body)
        }
        _ => None,
    };
}

fn allocated(runtime: &mut Runtime, at: &At<'_>, it: &InstanceAllocated) -> Option<()> {
    let (id, env): (InstanceId, _) = (at.id()?, at.env()?);
    let (org, app) = (at.org()?, at.app()?);
    let address = it.overlay_ipv6.parse().ok()?;
    let group_id = spec::group_id(env, &it.process);
    let plan = planner::Instance {
        group: group_id.clone(),
        node: it.node_id,
        spec: it.spec_hash,
        booking: Resources {
            cpu_millis: it.resources.cpu_millis,
            memory: it
                .resources
                .memory_bytes
                .saturating_add(it.resources.overhead_bytes),
            disk: it.resources.disk_bytes,
        },
        driver: spec::driver(&it.driver)?,
        volumes: it.mounts.iter().map(|mount| mount.volume_id).collect(),
        allocated_at: at.now(),
        desired: Desired::Running,
        observed: Observed {
            status: InstanceStatus::Allocated,
            since: at.now(),
            reason: None,
            failures: 0,
            was_ready: false,
        },
        routed: false,
        restart: false,
    };
    runtime.plan.instances.insert(id, plan);
    let record = Instance {
        org,
        app,
        assignment: it.assignment_id,
        generation: it.generation,
        allocated_seq: at.seq(),
        release: it.release_id,
        secrets: it.secret_version_id,
        deploy: it.deploy_id,
        ended_by: None,
        address,
        overhead: it.resources.overhead_bytes,
        mounts: it.mounts.clone(),
        desired_since: at.now(),
        left_at: None,
        boot: None,
        exit_code: None,
        detail: None,
        boot_ms: None,
        changes: VecDeque::new(),
    };
    runtime.instances.insert(id, record);
    let node = runtime.nodes.get(&it.node_id).map(|node| node.address);
    runtime.ipam.take_instance(node, address, at.now());
    if let Some(notes) = runtime.groups.get_mut(&group_id) {
        notes.allocation = None;
    }
    let group = runtime.plan.groups.get_mut(&group_id)?;
    (group.version, group.allocation_failed_at) = (at.seq(), None);
    Some(())
}

fn wanted(runtime: &mut Runtime, at: &At<'_>, it: &InstanceDesiredStateChanged) -> Option<()> {
    let id: InstanceId = at.id()?;
    let instance = runtime.plan.instances.get_mut(&id)?;
    let record = runtime.instances.get_mut(&id)?;
    let group = instance.group.clone();
    match DesiredState::parse(&it.desired_state)? {
        DesiredState::Running => instance.desired = Desired::Running,
        DesiredState::Draining => match &mut instance.desired {
            // Said a second time, it is the permission to end.
            Desired::Draining { stop_allowed, .. } => {
                if it.stop_allowed == Some(true) {
                    *stop_allowed = Some(at.now());
                }
            }
            Desired::Running | Desired::Stopped { .. } => {
                let reason = DrainReason::parse(&it.reason)?;
                instance.desired = Desired::Draining {
                    since: at.now(),
                    grace: Duration::from_secs(it.drain_grace_seconds.unwrap_or(0)),
                    reason,
                    stop_allowed: None,
                };
                record.desired_since = at.now();
                record.left_at = Some(at.seq());
                let deploy = at.event.correlation_id.as_deref();
                record.ended_by = deploy.and_then(|id| id.parse().ok());
                runtime.routing_seq = at.seq();
                let node = instance.node;
                replaced(runtime, &group, node, (reason, at.now()));
            }
        },
        DesiredState::Stopped => {
            let reason = StopReason::parse(&it.reason)?;
            instance.desired = Desired::Stopped { reason };
            record.desired_since = at.now();
            record.left_at = record.left_at.or(Some(at.seq()));
            runtime.routing_seq = at.seq();
        }
    }
    runtime.plan.groups.get_mut(&group)?.version = at.seq();
    Some(())
}

/// Remembers who had to be replaced, for a while.
fn replaced(
    runtime: &mut Runtime,
    group: &GroupId,
    node: fluffy_base::id::NodeId,
    (reason, at): (DrainReason, Timestamp),
) {
    let Some(group) = runtime.plan.groups.get_mut(group) else {
        return;
    };
    group
        .replaced
        .retain(|replaced| at.since(replaced.at) < FAILURE_WINDOW);
    if matches!(reason, DrainReason::StartFailed | DrainReason::HostFailed) {
        group.replaced.push(Replaced { at, reason, node });
    }
}

fn observed(runtime: &mut Runtime, at: &At<'_>, it: &InstanceStatusChanged) -> Option<()> {
    let id: InstanceId = at.id()?;
    let status = InstanceStatus::parse(&it.status)?;
    let reason = it.reason_code.as_deref().and_then(FailureReason::parse);
    let instance = runtime.plan.instances.get_mut(&id)?;
    let record = runtime.instances.get_mut(&id)?;
    let now = at.now();
    let seen = &mut instance.observed;
    if seen.status != status {
        (seen.status, seen.since) = (status, now);
    }
    seen.reason = reason;
    seen.was_ready |= status == InstanceStatus::Ready;
    match status {
        InstanceStatus::Ready => seen.failures = 0,
        InstanceStatus::Failed => seen.failures = seen.failures.saturating_add(1),
        _ => {}
    }
    record.boot = it.boot_id.or(record.boot);
    record.exit_code = it.exit_code;
    record.boot_ms = it.boot_ms.or(record.boot_ms);
    record.detail.clone_from(&it.reason_detail);
    record.changes.push_back(now);
    record.changes.retain(|then| now.since(*then) < FLAP_WINDOW);
    let (group, node) = (instance.group.clone(), instance.node);
    runtime.routing_seq = at.seq();
    if status == InstanceStatus::Failed {
        if let Some(env) = runtime.envs.get_mut(&group.env) {
            env.last_error = Some(LastError {
                at: now,
                reason: it
                    .reason_code
                    .clone()
                    .unwrap_or_else(|| "failed".to_owned()),
                detail: it.reason_detail.clone(),
                instance: Some(id),
            });
        }
        // Without the server's keys no node would do better.
        let of_host = |reason: &FailureReason| {
            reason.class() == FailureClass::Host && *reason != FailureReason::SecretsKeyUnavailable
        };
        if reason.as_ref().is_some_and(of_host) {
            let recent = |then: Timestamp| now.since(then) < FAILURE_WINDOW;
            let plan = runtime.plan.nodes.get_mut(&node)?;
            plan.host_failures.retain(|then| recent(*then));
            plan.host_failures.push(now);
            let record = runtime.nodes.get_mut(&node)?;
            record.failures.retain(|(then, _)| recent(*then));
            record.failures.push_back((now, group));
        }
    }
    Some(())
}

fn collected(runtime: &mut Runtime, at: &At<'_>) -> Option<()> {
    let id: InstanceId = at.id()?;
    let plan = runtime.plan.instances.remove(&id)?;
    let record = runtime.instances.remove(&id)?;
    at.forget("instance", id);
    let address = record.address.to_bits();
    runtime.ipam.instances.give_back(address, at.now(), REST);
    runtime.routing_seq = at.seq();
    spec::forget(runtime, &plan.group);
    tenancy::clear(runtime, at, plan.group.env);
    Some(())
}

fn group(runtime: &mut Runtime, at: &At<'_>, body: &Body) -> Option<()> {
    let (env, process) = at.event.aggregate.id.split_once('/')?;
    let id = spec::group_id(env.parse().ok()?, process);
    let group = runtime.plan.groups.get_mut(&id)?;
    group.version = at.seq();
    let notes = runtime.groups.entry(id).or_default();
    match body {
        Body::GroupConditionChanged(it) => {
            let condition = Condition::parse(&it.condition);
            if it.active {
                group.conditions.extend(condition);
                let since = (at.now(), it.detail.clone());
                notes.conditions.insert(it.condition.clone(), since);
            } else {
                condition.map(|condition| group.conditions.remove(&condition));
                notes.conditions.remove(&it.condition);
            }
        }
        Body::InstanceAllocationFailed(it) => {
            group.allocation_failed_at = Some(at.now());
            notes.allocation = Some((it.reason.clone(), it.attempts));
            if let Some(env) = runtime.envs.get_mut(&env.parse().ok()?) {
                env.last_error = Some(LastError {
                    at: at.now(),
                    reason: it.reason.clone(),
                    detail: it.detail.clone(),
                    instance: None,
                });
            }
        }
        _ => {}
    }
    Some(())
}
