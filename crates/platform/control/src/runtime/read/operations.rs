//! Whatever takes a while, seen as one thing: deploys, drains, jobs, deletions.

use fluffy_api::types::{Blocker, LongOperation, OperationError, Progress};
use fluffy_base::Timestamp;
use fluffy_base::id::{
    DeployId, DrainId, EnvId, OrgId, RequestId, RestoreId, VolumeId, VolumeSnapshotId,
};
use fluffy_planner::lifecycle::{DeployState, JobState};
use serde_json::Value;

use super::{Asked, View, found};
use crate::refusal::Refusal;
use crate::runtime::spec;

impl View<'_> {
    /// Any long operation by its id, which is that of its resource.
    pub(super) fn operation(&self, id: &str) -> Option<LongOperation> {
        if let Ok(id) = id.parse() {
            return self.deploying(id);
        }
        if let Ok(id) = id.parse::<VolumeSnapshotId>() {
            let it = self.runtime().snapshots.get(&id)?;
            let times = self.meta("snapshot", id)?;
            let times = (times.created_at, times.updated_at);
            return Some(job(
                &id.to_string(),
                "snapshot",
                it.state,
                &it.failed_reason,
                times,
            ));
        }
        if let Ok(id) = id.parse::<RestoreId>() {
            let it = self.runtime().restores.get(&id)?;
            let times = self.meta("restore_job", id)?;
            let times = (times.created_at, times.updated_at);
            return Some(job(
                &id.to_string(),
                "restore",
                it.state,
                &it.failed_reason,
                times,
            ));
        }
        if let Ok(id) = id.parse() {
            return self.drain(id);
        }
        if let Ok(id) = id.parse() {
            return self.deleting(id);
        }
        if let Ok(id) = id.parse() {
            return self.rehoming(id);
        }
        // What the server does by itself; it knows how far that is.
        Some(plain(id.to_owned(), "", "queued", (self.now, self.now)))
    }

    /// Whose a long operation is; none for those of the platform.
    fn owner_of(&self, id: &str) -> Option<OrgId> {
        let runtime = self.runtime();
        if let Ok(id) = id.parse::<DeployId>() {
            return Some(runtime.deploys.get(&id)?.org);
        }
        if let Ok(id) = id.parse::<VolumeSnapshotId>() {
            return Some(runtime.snapshots.get(&id)?.org);
        }
        if let Ok(id) = id.parse::<RestoreId>() {
            return Some(runtime.restores.get(&id)?.org);
        }
        if let Ok(id) = id.parse::<EnvId>() {
            return self.state.meta("env", &id.to_string())?.owner.org;
        }
        None
    }

    fn deploying(&self, id: DeployId) -> Option<LongOperation> {
        let deploy = self.runtime().deploys.get(&id)?;
        let shown = self.deploy(id)?;
        let status = match deploy.state {
            DeployState::Queued => "queued",
            DeployState::Rolling => "running",
            DeployState::Paused => "paused",
            DeployState::Succeeded => "succeeded",
            DeployState::Failed => "failed",
            DeployState::Canceled | DeployState::Superseded => "canceled",
        };
        let sum = |of: fn(&fluffy_api::types::GroupProgress) -> u32| {
            shown.groups.iter().map(|group| u64::from(of(group))).sum()
        };
        let progress = Progress {
            done: sum(|group| group.available),
            total: sum(|group| group.desired),
        };
        let error = deploy.failed_reason.as_ref().map(|code| OperationError {
            code: code.clone(),
            message: deploy.message.clone().unwrap_or_default(),
        });
        let times = (shown.meta.created_at, shown.meta.updated_at);
        Some(LongOperation {
            progress: Some(progress),
            error,
            ..plain(
                id.to_string(),
                spec::deploy_kind_text(deploy.kind),
                status,
                times,
            )
        })
    }

    /// The emptying of a node, with what stands in its way.
    pub(super) fn drain(&self, id: DrainId) -> Option<LongOperation> {
        let runtime = self.runtime();
        let record = runtime.drains.get(&id)?;
        let node = runtime.plan.nodes.get(&record.node)?;
        let drain = node.drain.as_ref().filter(|_| record.ended.is_none());
        let progress = drain.map(|drain| {
            let left = runtime.left_to_move(record.node, drain.stateful);
            Progress {
                done: record.total.saturating_sub(left),
                total: record.total,
            }
        });
        let blockers = drain.iter().flat_map(|drain| &drain.blockers).map(|id| {
            let volumes = runtime.plan.instances.get(id).map(|it| &it.volumes);
            let volume = volumes.and_then(|volumes| volumes.first());
            let backup = volume.and_then(|volume| runtime.volumes.get(volume)?.last_backup_at);
            Blocker {
                instance_id: id.to_string(),
                volume_id: volume.map(ToString::to_string),
                last_backup_at: backup,
                reason: "drain_blocked".to_owned(),
            }
        });
        let times = (record.started_at, record.updated_at);
        let status = record.ended.as_deref().unwrap_or("running");
        Some(LongOperation {
            progress,
            blockers: blockers.collect(),
            ..plain(id.to_string(), "drain", status, times)
        })
    }

    /// A disk that was found in another node: there is nothing to wait for.
    fn rehoming(&self, id: VolumeId) -> Option<LongOperation> {
        let at = self.runtime().volumes.get(&id)?.rehomed_at?;
        Some(plain(id.to_string(), "rehome", "succeeded", (at, at)))
    }

    /// An env that is cleared away is done once nothing is left of it.
    fn deleting(&self, id: EnvId) -> Option<LongOperation> {
        let times = self.meta("env", id)?;
        let times = (times.created_at, times.updated_at);
        let env = self.runtime().envs.get(&id);
        let status = match env {
            Some(env) if env.deleted_at.is_none() => return None,
            Some(_) => "running",
            None => "succeeded",
        };
        Some(plain(id.to_string(), "env_delete", status, times))
    }
}

fn plain(
    id: String,
    kind: &str,
    status: &str,
    (created_at, updated_at): (Timestamp, Timestamp),
) -> LongOperation {
    LongOperation {
        id,
        kind: kind.to_owned(),
        status: status.to_owned(),
        progress: None,
        error: None,
        blockers: Vec::new(),
        result: None,
        created_at,
        updated_at,
    }
}

fn job(
    id: &str,
    kind: &str,
    state: JobState,
    failed: &Option<String>,
    times: (Timestamp, Timestamp),
) -> LongOperation {
    let error = failed.as_ref().map(|reason| OperationError {
        code: reason.clone(),
        message: reason.clone(),
    });
    LongOperation {
        error,
        ..plain(id.to_owned(), kind, state.as_str(), times)
    }
}

impl Asked<'_> {
    pub(super) fn operation(&self) -> Result<Value, Refusal> {
        let id = self.place.leaf.as_deref().unwrap_or_default();
        let own = self.view.owner_of(id);
        let own = own.filter(|org| Some(*org) == self.place.owner.org);
        found(own.and_then(|_| self.view.operation(id)))
    }

    pub(super) fn platform_operation(&self) -> Result<Value, Refusal> {
        let id = self.place.leaf.as_deref().unwrap_or_default();
        // What the server does by itself, the server knows.
        if id.parse::<RequestId>().is_ok() {
            return Ok(Value::Null);
        }
        let drain = id.parse().ok().and_then(|id| self.view.drain(id));
        let rehome = || id.parse().ok().and_then(|id| self.view.rehoming(id));
        found(drain.or_else(rehome))
    }
}
