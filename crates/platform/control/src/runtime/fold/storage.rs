//! Volumes: who mounts them, their backups, and what is made from those.

use fluffy_base::id::{AttachmentId, DeployId, VolumeId, VolumeSnapshotId};
use fluffy_planner::lifecycle::{JobState, VolumeState};
use fluffy_planner::model as planner;

use super::{At, keep, nodes, tenancy};
use crate::event::{Body, VolumeCreated};
use crate::runtime::record::{Attachment, Deploy, Restore, Snapshot, Volume};
use crate::runtime::{Runtime, spec};

pub(super) fn apply(runtime: &mut Runtime, at: &At<'_>, body: &Body) {
    let _ = volume(runtime, at, body);
    let _ = attachment(runtime, at, body);
    let _ = job(runtime, at, body);
}

fn volume(runtime: &mut Runtime, at: &At<'_>, body: &Body) -> Option<()> {
    let id: VolumeId = at.id()?;
    match body {
        Body::VolumeCreated(it) => created(runtime, at, (id, it))?,
        Body::VolumeUpdated(it) => {
            runtime.volumes.get_mut(&id)?.backup_enabled = it.backup_enabled;
        }
        Body::VolumeStateChanged(it) => {
            let volume = runtime.volumes.get_mut(&id)?;
            let state = VolumeState::parse(&it.state)?;
            volume.reason.clone_from(&it.reason);
            volume.instance = match state {
                VolumeState::Attaching | VolumeState::InUse => it.instance_id.or(volume.instance),
                VolumeState::Available | VolumeState::Error => None,
                _ => volume.instance,
            };
            runtime.plan.volumes.get_mut(&id)?.state = state;
        }
        Body::VolumeRehomed(it) => {
            runtime.plan.volumes.get_mut(&id)?.home = it.new_node_id;
            runtime.volumes.get_mut(&id)?.rehomed_at = Some(at.now());
            nodes::disk(runtime, it.old_node_id);
            nodes::disk(runtime, it.new_node_id);
        }
        Body::VolumeDeleted(_) => {
            let volume = runtime.volumes.remove(&id)?;
            at.forget("volume", id);
            let name = format!("{}/volume/{}", volume.org, volume.name);
            tenancy::reserve(runtime, at, name);
            let plan = runtime.plan.volumes.remove(&id)?;
            nodes::disk(runtime, plan.home);
        }
        _ => {}
    }
    Some(())
}

fn created(runtime: &mut Runtime, at: &At<'_>, (id, it): (VolumeId, &VolumeCreated)) -> Option<()> {
    let volume = Volume {
        org: at.org()?,
        name: it.name.clone(),
        size: it.size_bytes,
        filesystem: it.filesystem.clone(),
        backup_enabled: it.backup_enabled,
        snapshot: it.snapshot_id,
        reason: None,
        instance: None,
        last_backup_at: None,
        rehomed_at: None,
    };
    runtime.volumes.insert(id, volume);
    let plan = planner::Volume {
        home: it.home_node_id,
        state: VolumeState::Creating,
    };
    runtime.plan.volumes.insert(id, plan);
    nodes::disk(runtime, it.home_node_id);
    Some(())
}

fn attachment(runtime: &mut Runtime, at: &At<'_>, body: &Body) -> Option<()> {
    match body {
        Body::VolumeAttachmentCreated(it) => {
            let env = at.env()?;
            let attachment = Attachment {
                org: at.org()?,
                app: at.app()?,
                env,
                volume: it.volume_id,
                process: it.process.clone(),
                mount_path: it.mount_path.clone(),
                read_only: it.read_only,
            };
            let id: AttachmentId = at.id()?;
            runtime.attachments.insert(id, attachment);
            if let Some(deploy) = changing(runtime, at) {
                deploy.attached.push(id);
            }
            spec::refresh(runtime, env, &it.process, at.seq());
        }
        Body::VolumeAttachmentDeleted(_) => {
            let id: AttachmentId = at.id()?;
            let gone = runtime.attachments.remove(&id)?;
            at.forget("volume_attachment", id);
            spec::refresh(runtime, gone.env, &gone.process, at.seq());
            if let Some(deploy) = changing(runtime, at) {
                deploy.detached.push(gone);
            }
        }
        _ => {}
    }
    Some(())
}

/// The deploy that attaches or detaches, if one does: whoever calls it off, or
/// sees it fail, has to know what there was before.
fn changing<'a>(runtime: &'a mut Runtime, at: &At<'_>) -> Option<&'a mut Deploy> {
    let id: DeployId = at.event.correlation_id.as_deref()?.parse().ok()?;
    let deploy = runtime.deploys.get_mut(&id)?;
    // What gives things back belongs to it as well, and comes after its end.
    (!deploy.state.is_final()).then_some(deploy)
}

fn job(runtime: &mut Runtime, at: &At<'_>, body: &Body) -> Option<()> {
    match body {
        Body::SnapshotCreated(it) => {
            let volume = runtime.volumes.get(&it.volume_id)?;
            let snapshot = Snapshot {
                org: volume.org,
                volume: it.volume_id,
                volume_size: volume.size,
                node: it.source_node_id,
                state: JobState::Queued,
                consistency: None,
                size: None,
                failed_reason: None,
                succeeded_at: None,
                note: it.note.clone(),
            };
            runtime.snapshots.insert(at.id()?, snapshot);
        }
        Body::SnapshotStatusChanged(it) => {
            let snapshot = runtime.snapshots.get_mut(&at.id()?)?;
            snapshot.state = JobState::parse(&it.status)?;
            if let Some(consistency) = &it.consistency {
                snapshot.consistency = Some(consistency.clone());
            }
            snapshot.size = it.size_bytes.or(snapshot.size);
            snapshot.failed_reason.clone_from(&it.failed_reason);
            if snapshot.state == JobState::Succeeded {
                snapshot.succeeded_at = Some(at.now());
                let volume = runtime.volumes.get_mut(&snapshot.volume)?;
                volume.last_backup_at = Some(at.now());
            }
        }
        Body::SnapshotDeleted(_) => {
            let id: VolumeSnapshotId = at.id()?;
            let gone = runtime.snapshots.remove(&id)?;
            at.forget("snapshot", id);
            let left = runtime.snapshots.values();
            let left = left.filter(|it| it.volume == gone.volume);
            let last = left.filter_map(|it| it.succeeded_at).max();
            runtime.volumes.get_mut(&gone.volume)?.last_backup_at = last;
        }
        Body::RestoreJobCreated(it) => {
            let volume = runtime.plan.volumes.get(&it.new_volume_id)?;
            let restore = Restore {
                org: at.org()?,
                snapshot: it.snapshot_id,
                source: it.source_volume_id,
                volume: it.new_volume_id,
                node: volume.home,
                state: JobState::Queued,
                failed_reason: None,
            };
            runtime.restores.insert(at.id()?, restore);
        }
        Body::RestoreJobStatusChanged(it) => {
            let id = at.id()?;
            let restore = runtime.restores.get_mut(&id)?;
            restore.state = JobState::parse(&it.status)?;
            restore.failed_reason.clone_from(&it.failed_reason);
            if restore.state.is_final() {
                let ended = &mut runtime.finished.restores;
                if let Some(oldest) = keep(&mut runtime.restores, ended, id) {
                    at.forget("restore_job", oldest);
                }
            }
        }
        _ => {}
    }
    Some(())
}
