//! Volumes, attachments, snapshots and restores.

use std::collections::BTreeMap;

use fluffy_api::types::{
    CreateAttachment, CreateSnapshot, CreateVolume, ReplaceAttachment, RestoreSnapshot,
    UpdateVolume,
};
use fluffy_base::id::{AttachmentId, EnvId, NodeId, RestoreId, VolumeId, VolumeSnapshotId};
use fluffy_planner::lifecycle::{AttachmentState, Cause, JobState, NodeState, VolumeState};
use fluffy_planner::model::EnvIsolation;
use serde_json::Value;

use super::mounts::detached;
use super::preflight::{Need, choose, replica_limit};
use super::{Decided, Desk, gone, invalid, missing, name, transition};
use crate::call::{Fact, Subject};
use crate::event::{
    RestoreJobCreated, SnapshotCreated, SnapshotDeleted, VolumeAttachmentCreated, VolumeCreated,
    VolumeDeleted, VolumeStateChanged, VolumeUpdated,
};
use crate::refusal::Refusal;
use crate::runtime::quota::{Dimension, within};
use crate::runtime::{Runtime, read, record, spec};

/// The smallest and the largest volume.
const SIZES: std::ops::RangeInclusive<u64> = (1 << 30)..=(2 << 40);

/// Where nothing can be mounted.
const RESERVED: [&str; 5] = ["/proc", "/sys", "/dev", "/run", "/tmp"];

pub(super) fn create(desk: &Desk<'_>) -> Decided {
    let org = desk.org()?;
    let body: CreateVolume = desk.body()?;
    let runtime = desk.runtime();
    free_name(desk, &body.name)?;
    if !SIZES.contains(&body.size_bytes) {
        return Err(invalid("size_bytes", "a volume has from 1 GiB to 2 TiB"));
    }
    if body.filesystem.as_deref().is_some_and(|it| it != "ext4") {
        return Err(invalid("filesystem", "only `ext4` exists"));
    }
    let near = body
        .near
        .as_deref()
        .map(|text| named(desk, text))
        .transpose()?;
    let near = near
        .and_then(|id| runtime.plan.volumes.get(&id))
        .map(|it| it.home);
    if body.node.zip(near).is_some_and(|(node, near)| node != near) {
        let why = "the other volume is on another node";
        return Err(Refusal::new(
            "volume_home_mismatch",
            why,
            "name one of `node` and `near`",
        ));
    }
    quota(runtime, org, body.size_bytes)?;
    let home = place(runtime, body.size_bytes, body.node.or(near))?;
    let id = VolumeId::from_bits(desk.bits());
    let created = VolumeCreated {
        name: body.name,
        size_bytes: body.size_bytes,
        filesystem: "ext4".to_owned(),
        backup_enabled: body.backup_enabled.unwrap_or(true),
        home_node_id: home,
        snapshot_id: None,
    };
    Ok((
        vec![Fact::new(id, created.into())],
        Subject::of("volume", id),
    ))
}

fn free_name(desk: &Desk<'_>, text: &str) -> Result<(), Refusal> {
    name("name", text, 98)?;
    let org = desk.org()?;
    let mut all = desk.runtime().volumes.values();
    let taken = all.any(|it| it.org == org && it.name == text);
    desk.name_is_free(&format!("{org}/volume"), text, taken)
}

fn quota(runtime: &Runtime, org: fluffy_base::id::OrgId, bytes: u64) -> Result<(), Refusal> {
    runtime.within(org, Dimension::Volumes, 1)?;
    runtime.within(org, Dimension::VolumeBytes, bytes)
}

fn place(runtime: &Runtime, bytes: u64, only: Option<NodeId>) -> Result<NodeId, Refusal> {
    let need = Need {
        bytes,
        process: None,
        isolation: EnvIsolation::SharedKernelAllowed,
    };
    choose(runtime, &BTreeMap::new(), &need, only)
}

/// A volume of the org, by id or name.
fn named(desk: &Desk<'_>, text: &str) -> Result<VolumeId, Refusal> {
    let org = desk.org()?;
    let named: Option<VolumeId> = text.parse().ok();
    let mut volumes = desk.runtime().volumes.iter();
    let found = volumes.find(|(id, it)| it.org == org && (it.name == text || Some(**id) == named));
    found.map(|(id, _)| *id).ok_or_else(|| missing("volume"))
}

/// The volume that the path names, and where it stands.
fn volume<'a>(desk: &Desk<'a>) -> Result<(VolumeId, &'a record::Volume, VolumeState), Refusal> {
    let id = named(desk, desk.place.leaf.as_deref().unwrap_or_default())?;
    let volume = desk.runtime().volumes.get(&id);
    let plan = desk.runtime().plan.volumes.get(&id);
    let (volume, plan) = volume.zip(plan).ok_or_else(|| missing("volume"))?;
    Ok((id, volume, plan.state))
}

pub(super) fn update(desk: &Desk<'_>) -> Decided {
    let (id, _, state) = volume(desk)?;
    if state == VolumeState::Deleting {
        let why = "the volume is being deleted";
        return Err(Refusal::new("invalid_transition", why, ""));
    }
    let body: UpdateVolume = desk.body()?;
    let updated = VolumeUpdated {
        backup_enabled: body.backup_enabled,
    };
    Ok((
        vec![Fact::new(id, updated.into())],
        Subject::of("volume", id),
    ))
}

pub(super) fn delete(desk: &Desk<'_>) -> Decided {
    let (id, _, state) = volume(desk)?;
    let runtime = desk.runtime();
    if runtime.attachments.values().any(|it| it.volume == id) || is_held(runtime, id) {
        let why = "the volume belongs to a process type";
        return Err(Refusal::new(
            "volume_attached",
            why,
            "delete the attachment first",
        ));
    }
    let home = runtime.plan.volumes.get(&id).map(|it| it.home);
    // Whoever had the data is gone for good, and nobody will confirm it.
    let fenced = home.is_some_and(|home| runtime.plan.is_fenced(home));
    if !fenced {
        VolumeState::can(Some(state), VolumeState::Deleting, Cause::VolumeDelete)
            .map_err(transition)?;
    }
    let deleting = VolumeStateChanged {
        state: VolumeState::Deleting.to_string(),
        reason: None,
        instance_id: None,
    };
    let mut facts = vec![Fact::new(id, deleting.into())];
    let subject = Subject::of("volume", id);
    if !fenced {
        return Ok((facts, subject));
    }
    facts.push(Fact::new(id, VolumeDeleted {}.into()));
    // Afterwards there is nothing to show: it is shown as it goes.
    let mut last = Subject::of("gone", id);
    if let Value::Object(shown) = read::answer(desk.state, &subject) {
        last.details.extend(shown);
    }
    let status = VolumeState::Deleting.to_string();
    Ok((facts, last.with("status", status)))
}

fn is_held(runtime: &Runtime, volume: VolumeId) -> bool {
    let mut instances = runtime.plan.instances.values();
    instances.any(|it| it.volumes.contains(&volume) && runtime.plan.holds_volumes(it))
}

fn is_live(runtime: &Runtime, env: EnvId, process: &str) -> bool {
    let group = spec::group_id(env, process);
    let mut instances = runtime.plan.instances.values();
    instances.any(|it| it.group == group && runtime.plan.holds_volumes(it))
}

pub(super) fn attach(desk: &Desk<'_>) -> Decided {
    let (env_id, env) = desk.env()?;
    let body: CreateAttachment = desk.body()?;
    let runtime = desk.runtime();
    name("process", &body.process, 32)?;
    mount_path(&body.mount_path)?;
    let wanted = runtime.wanted(env_id, &body.process);
    let process = wanted.and_then(|it| runtime.process(env_id, it.release, &body.process));
    if let Some(process) = &process {
        let count = runtime.count(env_id, &body.process, process);
        // The manifest's own bound is 100 where it says nothing, so only what
        // is wanted now counts.
        if count > 1 {
            return Err(replica_limit(&body.process));
        }
    }
    usable(desk, body.volume_id, env_id, &body.process)?;
    let own = runtime.mounts(env_id, &body.process);
    if own.iter().any(|mount| mount.mount_path == body.mount_path) {
        let why = "another volume is mounted there";
        return Err(Refusal::new(
            "mount_path_invalid",
            why,
            "choose another path",
        ));
    }
    if own.len() >= 8 {
        let why = "a process type mounts at most 8 volumes";
        return Err(Refusal::new("mount_path_invalid", why, "remove one"));
    }
    runtime.within(env.org, Dimension::Attachments, 1)?;
    AttachmentState::can(None, AttachmentState::Active, Cause::VolumeWrite).map_err(transition)?;
    let id = AttachmentId::from_bits(desk.bits());
    let created = VolumeAttachmentCreated {
        volume_id: body.volume_id,
        process: body.process,
        mount_path: body.mount_path,
        read_only: body.read_only,
    };
    Ok((
        vec![Fact::new(id, created.into())],
        Subject::of("volume_attachment", id),
    ))
}

fn mount_path(path: &str) -> Result<(), Refusal> {
    let parts = path.strip_prefix('/').map(|rest| rest.split('/'));
    let plain = parts
        .is_some_and(|mut parts| parts.all(|part| !part.is_empty() && part != "." && part != ".."));
    let below = |reserved: &&str| {
        let rest = path.strip_prefix(*reserved);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if plain && path.len() <= 256 && !RESERVED.iter().any(below) {
        return Ok(());
    }
    let why = format!("nothing can be mounted at `{path}`");
    let fix = "choose an absolute path outside /proc, /sys, /dev, /run and /tmp";
    Err(Refusal::new("mount_path_invalid", why, fix))
}

/// Refuses a volume that another has, or that is not where the others are.
fn usable(desk: &Desk<'_>, id: VolumeId, env: EnvId, process: &str) -> Result<(), Refusal> {
    let (runtime, org) = (desk.runtime(), desk.org()?);
    let volume = runtime.volumes.get(&id).filter(|volume| volume.org == org);
    // Whoever may mount volumes here may not for that take those of elsewhere.
    let volume = volume.filter(|_| desk.reaches("volume.write", ("volume", &id.to_string())));
    volume.ok_or_else(|| missing("volume"))?;
    let plan = runtime
        .plan
        .volumes
        .get(&id)
        .ok_or_else(|| missing("volume"))?;
    let gone = [
        VolumeState::Error,
        VolumeState::Deleting,
        VolumeState::Deleted,
    ];
    if gone.contains(&plan.state) {
        let why = format!("the volume is {}", plan.state);
        return Err(Refusal::new(
            "invalid_transition",
            why,
            "choose another volume",
        ));
    }
    if runtime.attachments.values().any(|it| it.volume == id) {
        let why = "the volume belongs to a process type already";
        return Err(Refusal::new(
            "volume_attached",
            why,
            "delete that attachment first",
        ));
    }
    if is_held(runtime, id) {
        let why = "an instance has not given the volume back yet";
        return Err(Refusal::new(
            "volume_in_use",
            why,
            "wait until it has stopped",
        ));
    }
    let own = runtime.mounts(env, process);
    let others = own
        .iter()
        .filter_map(|it| runtime.plan.volumes.get(&it.volume_id));
    if others.into_iter().any(|other| other.home != plan.home) {
        let why = "the process type's other volumes are on another node";
        let fix = "restore a snapshot of it onto that node";
        return Err(Refusal::new("volume_home_mismatch", why, fix));
    }
    Ok(())
}

fn attachment<'a>(desk: &Desk<'a>) -> Result<(AttachmentId, &'a record::Attachment), Refusal> {
    let (env, _) = desk.env()?;
    let id: AttachmentId = desk.leaf("attachment")?;
    let found = desk.runtime().attachments.get(&id);
    let found = found.filter(|it| it.env == env);
    let found = found.ok_or_else(|| missing("attachment"))?;
    if is_live(desk.runtime(), env, &found.process) {
        let why = format!("`{}` still has instances", found.process);
        let fix = format!(
            "fluffy scale {}=0, and wait until they have stopped",
            found.process
        );
        return Err(Refusal::new("volume_in_use", why, fix));
    }
    Ok((id, found))
}

/// Another volume in the same place, in one append.
pub(super) fn replace(desk: &Desk<'_>) -> Decided {
    let (id, found) = attachment(desk)?;
    let body: ReplaceAttachment = desk.body()?;
    // Before anything else is said of it: whose it is.
    usable(desk, body.volume_id, found.env, "")?;
    let runtime = desk.runtime();
    let others = runtime.attachments.iter();
    let others = others
        .filter(|(other, it)| **other != id && it.env == found.env && it.process == found.process);
    let home = |volume: &VolumeId| runtime.plan.volumes.get(volume).map(|it| it.home);
    let wanted = home(&body.volume_id);
    for (_, other) in others {
        if home(&other.volume) != wanted {
            let why = "the process type's other volumes are on another node";
            return Err(Refusal::new(
                "volume_home_mismatch",
                why,
                "replace those first",
            ));
        }
    }
    let new = AttachmentId::from_bits(desk.bits());
    let created = VolumeAttachmentCreated {
        volume_id: body.volume_id,
        process: found.process.clone(),
        mount_path: found.mount_path.clone(),
        read_only: found.read_only,
    };
    let facts = vec![detached(id, found), Fact::new(new, created.into())];
    Ok((facts, Subject::of("volume_attachment", new)))
}

pub(super) fn detach(desk: &Desk<'_>) -> Decided {
    let (id, found) = attachment(desk)?;
    AttachmentState::can(
        Some(AttachmentState::Active),
        AttachmentState::Deleted,
        Cause::VolumeWrite,
    )
    .map_err(transition)?;
    Ok((vec![detached(id, found)], gone(id)))
}

pub(super) fn snapshot(desk: &Desk<'_>) -> Decided {
    let (id, volume, state) = volume(desk)?;
    let body: CreateSnapshot = desk.body()?;
    let runtime = desk.runtime();
    if !matches!(state, VolumeState::Available | VolumeState::InUse) {
        let why = format!("the volume is {state}");
        return Err(Refusal::new(
            "invalid_transition",
            why,
            "wait until it is available",
        ));
    }
    let snapshots = runtime.snapshots.values();
    let own = snapshots.filter(|it| it.volume == id && it.state != JobState::Failed);
    let used = u64::try_from(own.count()).unwrap_or(u64::MAX);
    let limit = runtime.limit(volume.org, Dimension::SnapshotsPerVolume);
    within(limit, used, Dimension::SnapshotsPerVolume, 1)?;
    let home = runtime.plan.volumes.get(&id).map(|it| it.home);
    let created = SnapshotCreated {
        volume_id: id,
        source_node_id: home.ok_or_else(|| missing("node"))?,
        note: body.note,
    };
    let snapshot = VolumeSnapshotId::from_bits(desk.bits());
    Ok((
        vec![Fact::new(snapshot, created.into())],
        Subject::of("snapshot", snapshot),
    ))
}

/// The snapshot that the path names.
fn taken<'a>(desk: &Desk<'a>) -> Result<(VolumeSnapshotId, &'a record::Snapshot), Refusal> {
    let org = desk.org()?;
    let id: VolumeSnapshotId = desk.leaf("snapshot")?;
    let snapshot = desk.runtime().snapshots.get(&id);
    let snapshot = snapshot.filter(|it| it.org == org);
    Ok((id, snapshot.ok_or_else(|| missing("snapshot"))?))
}

/// Gives a snapshot up, unless somebody is at it.
pub(super) fn delete_snapshot(desk: &Desk<'_>) -> Decided {
    let (id, snapshot) = taken(desk)?;
    let refused = |why: &str| {
        let fix = "wait until it has ended";
        Err(Refusal::new("invalid_transition", why, fix))
    };
    if snapshot.state == JobState::Running {
        return refused("a node is making the snapshot");
    }
    let mut restores = desk.runtime().restores.values();
    if restores.any(|it| it.snapshot == id && !it.state.is_final()) {
        return refused("a restore reads the snapshot");
    }
    Ok((vec![Fact::new(id, SnapshotDeleted {}.into())], gone(id)))
}

/// Makes a new volume; the one that the snapshot is of stays as it is.
pub(super) fn restore(desk: &Desk<'_>) -> Decided {
    let (org, runtime) = (desk.org()?, desk.runtime());
    let (id, snapshot) = taken(desk)?;
    let body: RestoreSnapshot = desk.body()?;
    if snapshot.state != JobState::Succeeded {
        let why = format!("the snapshot is {}", snapshot.state);
        return Err(Refusal::new(
            "snapshot_not_ready",
            why,
            "wait until it has succeeded",
        ));
    }
    free_name(desk, &body.name)?;
    runtime.within(org, Dimension::ConcurrentRestores, 1)?;
    quota(runtime, org, snapshot.volume_size)?;
    if let Some(node) = body.target_node {
        let node = runtime.plan.nodes.get(&node);
        let node = node.ok_or_else(|| missing("node"))?;
        if node.state != NodeState::Active {
            let why = format!("the node is {}", node.state);
            return Err(Refusal::new("no_capacity_disk", why, "choose another node"));
        }
    }
    let home = place(runtime, snapshot.volume_size, body.target_node)?;
    let volume = VolumeId::from_bits(desk.bits());
    let created = VolumeCreated {
        name: body.name,
        size_bytes: snapshot.volume_size,
        filesystem: "ext4".to_owned(),
        backup_enabled: true,
        home_node_id: home,
        snapshot_id: Some(id),
    };
    let job = RestoreJobCreated {
        snapshot_id: id,
        source_volume_id: snapshot.volume,
        new_volume_id: volume,
        target_node_id: Some(home),
    };
    let restore = RestoreId::from_bits(desk.bits());
    let facts = vec![
        Fact::new(volume, created.into()).of(&desk.org_scope()),
        Fact::new(restore, job.into()).of(&desk.org_scope()),
    ];
    Ok((facts, Subject::of("restore_job", restore)))
}
