//! What a deploy does to the volumes of process types, and how that is undone.
//!
//! Declared volumes are made once and used again; which volume stands for a
//! declared one is what is mounted in its place, so what somebody attached or
//! replaced by hand stays. Volumes are made and attached, never removed.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_base::id::{AttachmentId, NodeId, OrgId, VolumeId};
use fluffy_manifest::model::{Mount, Process};
use fluffy_planner::lifecycle::VolumeState;
use fluffy_planner::model::EnvIsolation;

use super::preflight::{Need, Preflight, choose};
use crate::call::Fact;
use crate::event::{VolumeAttachmentCreated, VolumeAttachmentDeleted, VolumeCreated};
use crate::refusal::Refusal;
use crate::runtime::quota::{Dimension, within};
use crate::runtime::{Runtime, record};

/// The states of a volume that nothing can mount.
const USELESS: [VolumeState; 3] = [
    VolumeState::Error,
    VolumeState::Deleting,
    VolumeState::Deleted,
];

/// What a process type mounts before a deploy: by its release, and in truth.
pub(super) struct Mounted<'a> {
    declared: Vec<Mount>,
    attached: Vec<(AttachmentId, &'a record::Attachment)>,
    /// What stood for declared volumes when deploys dropped them, the newest
    /// first.
    dropped: Vec<(String, VolumeId)>,
}

impl<'a> Mounted<'a> {
    pub(super) fn of(it: &Preflight<'a>, process: &str) -> Self {
        let (env, record) = it.env;
        let runtime = it.desk.runtime();
        let mounts = |wanted: Option<record::Wanted>| {
            let found = wanted.and_then(|it| runtime.process(env, it.release, process));
            found.map(|found| found.mounts).unwrap_or_default()
        };
        let mut dropped = Vec::new();
        let deploys = record.deploys.iter().rev();
        for deploy in deploys.filter_map(|id| runtime.deploys.get(id)) {
            let own = deploy.detached.iter().filter(|at| at.process == process);
            let before = deploy.before.get(process).copied().flatten();
            for at in own.filter(|at| runtime.volumes.contains_key(&at.volume)) {
                let declared = mounts(before).into_iter();
                let names = declared.filter(|mount| mount.path == at.mount_path);
                dropped.extend(names.map(|mount| (mount.volume, at.volume)));
            }
        }
        let own = runtime.attachments.iter();
        let own = own.filter(|(_, at)| at.env == env && at.process == process);
        Self {
            declared: mounts(runtime.wanted(env, process)),
            attached: own.map(|(id, at)| (*id, at)).collect(),
            dropped,
        }
    }

    /// Whether somebody attached a volume where the release declares none.
    pub(super) fn by_hand(&self) -> bool {
        let mut attached = self.attached.iter();
        attached.any(|(_, at)| !self.is_declared(&at.mount_path))
    }

    fn is_declared(&self, path: &str) -> bool {
        self.declared.iter().any(|mount| mount.path == path)
    }

    fn at(&self, path: &str) -> Option<VolumeId> {
        let mut attached = self.attached.iter();
        let found = attached.find(|(_, at)| at.mount_path == path);
        found.map(|(_, at)| at.volume)
    }

    /// The volume that stands for a declared one: what is mounted where the
    /// release before had it, else what somebody attached where it goes now,
    /// else what stood for it when a deploy dropped it.
    fn volume(&self, mount: &Mount) -> Option<VolumeId> {
        let before = self.declared.iter().find(|it| it.volume == mount.volume);
        let there = match before {
            Some(before) => self.at(&before.path),
            None if self.is_declared(&mount.path) => None,
            None => self.at(&mount.path),
        };
        let mut dropped = self.dropped.iter();
        let last = dropped.find(|(name, _)| *name == mount.volume);
        there.or(last.map(|(_, volume)| *volume))
    }

    /// Whether an attachment stays as it is, or goes; `mounts` are those of the
    /// release to come.
    fn stays(&self, at: &record::Attachment, mounts: &[(VolumeId, &Mount)]) -> bool {
        let moved = mounts.iter().any(|(volume, _)| *volume == at.volume);
        is_among(at, mounts) || !(self.is_declared(&at.mount_path) || moved)
    }
}

fn is_among(at: &record::Attachment, mounts: &[(VolumeId, &Mount)]) -> bool {
    let mut mounts = mounts.iter();
    mounts.any(|(volume, mount)| is_same(at, *volume, mount))
}

fn is_same(at: &record::Attachment, volume: VolumeId, mount: &Mount) -> bool {
    at.volume == volume && at.mount_path == mount.path && at.read_only == mount.read_only
}

/// Volumes that a deploy makes and attaches.
#[derive(Default)]
pub(super) struct Volumes {
    facts: Vec<Fact>,
    made: u64,
    bytes: u64,
    attached: u64,
    detached: u64,
    /// What this deploy has put on nodes already.
    placed: BTreeMap<NodeId, u64>,
}

impl Volumes {
    /// The facts that give every process type what it mounts.
    ///
    /// # Errors
    /// A volume cannot be had, or there is no room for one.
    pub(super) fn plan(
        mut self,
        it: &Preflight<'_>,
        processes: &[(&str, &Process)],
    ) -> Result<Vec<Fact>, Refusal> {
        for (name, process) in processes {
            self.process(it, name, process)?;
        }
        let (runtime, org) = (it.desk.runtime(), it.env.1.org);
        runtime.within(org, Dimension::Volumes, self.made)?;
        runtime.within(org, Dimension::VolumeBytes, self.bytes)?;
        let (limit, used) = (
            runtime.limit(org, Dimension::Attachments),
            runtime.used(org, Dimension::Attachments),
        );
        let more = self.attached.saturating_sub(self.detached);
        within(limit, used, Dimension::Attachments, more)?;
        Ok(self.facts)
    }

    fn process(
        &mut self,
        it: &Preflight<'_>,
        name: &str,
        process: &Process,
    ) -> Result<(), Refusal> {
        let (env_id, env) = it.env;
        let (runtime, manifest) = (it.desk.runtime(), it.manifest);
        let mounted = Mounted::of(it, name);
        let (mut mounts, mut wanted) = (Vec::new(), Vec::new());
        for mount in &process.mounts {
            let Some(declared) = manifest.volumes.get(&mount.volume) else {
                continue;
            };
            let full = format!("{}-{}-{}", it.app.name, env.name, mount.volume);
            let there = mounted.volume(mount);
            match there.or_else(|| named(runtime, env.org, &full)) {
                Some(id) => {
                    reuse(it, name, id, declared.size)?;
                    if mounts.iter().any(|(other, _)| *other == id) {
                        let why = format!("one volume would be mounted twice in `{name}`");
                        let fix = "look at the attachments of the process type";
                        return Err(Refusal::new("volume_constraints_invalid", why, fix));
                    }
                    mounts.push((id, mount));
                }
                None => {
                    is_free(it, &full)?;
                    wanted.push((full, declared, mount));
                }
            }
        }
        let home = home(runtime, name, &mounted, &mounts)?;
        if !wanted.is_empty() {
            let bytes = wanted.iter().map(|(_, declared, _)| declared.size);
            let bytes = bytes.fold(0, u64::saturating_add);
            let isolation = runtime.plan.envs.get(&env_id).map(|env| env.isolation);
            let need = Need {
                bytes,
                process: Some((process, it.release.1)),
                isolation: isolation.unwrap_or(EnvIsolation::Protected),
            };
            let home = choose(runtime, &self.placed, &need, home)?;
            *self.placed.entry(home).or_default() += bytes;
            for (full, declared, mount) in wanted {
                let id = VolumeId::from_bits(it.desk.bits());
                let created = VolumeCreated {
                    name: full,
                    size_bytes: declared.size,
                    filesystem: "ext4".to_owned(),
                    backup_enabled: declared.backup_enabled,
                    home_node_id: home,
                    snapshot_id: None,
                };
                let fact = Fact::new(id, created.into()).of(&it.desk.org_scope());
                self.facts.push(fact);
                self.made += 1;
                mounts.push((id, mount));
            }
            self.bytes = self.bytes.saturating_add(bytes);
        }
        self.attach(it, name, &mounted, &mounts)
    }

    /// Attaches what the manifest mounts, and detaches what it dropped.
    fn attach(
        &mut self,
        it: &Preflight<'_>,
        name: &str,
        mounted: &Mounted<'_>,
        mounts: &[(VolumeId, &Mount)],
    ) -> Result<(), Refusal> {
        for (id, at) in &mounted.attached {
            if !mounted.stays(at, mounts) {
                self.facts.push(detached(*id, at));
                self.detached += 1;
            }
        }
        for (volume_id, mount) in mounts {
            let mut there = mounted.attached.iter().map(|(_, at)| *at);
            if there.any(|at| is_same(at, *volume_id, mount)) {
                continue;
            }
            let mut staying = mounted.attached.iter().map(|(_, at)| *at);
            if staying.any(|at| at.mount_path == mount.path && mounted.stays(at, mounts)) {
                let why = format!(
                    "somebody attached another volume to `{name}` at `{}`",
                    mount.path
                );
                let fix = "delete that attachment first, or mount the volume elsewhere";
                return Err(Refusal::new("volume_constraints_invalid", why, fix));
            }
            let created = VolumeAttachmentCreated {
                volume_id: *volume_id,
                process: name.to_owned(),
                mount_path: mount.path.clone(),
                read_only: mount.read_only,
            };
            let id = AttachmentId::from_bits(it.desk.bits());
            self.facts.push(Fact::new(id, created.into()));
            self.attached += 1;
        }
        Ok(())
    }
}

fn named(runtime: &Runtime, org: OrgId, name: &str) -> Option<VolumeId> {
    let mut volumes = runtime.volumes.iter();
    let found = volumes.find(|(_, volume)| volume.org == org && volume.name == name);
    found.map(|(id, _)| *id)
}

/// A volume that was deleted leaves its name alone for a while, whoever asks.
fn is_free(it: &Preflight<'_>, name: &str) -> Result<(), Refusal> {
    let scope = format!("{}/volume", it.env.1.org);
    let free = it.desk.name_is_free(&scope, name, false);
    free.map_err(|refusal| Refusal {
        fix: "give the volume another name in the manifest".to_owned(),
        ..refusal
    })
}

/// Where everything is that a process type mounts and will mount; nothing, if
/// it has no volume yet.
fn home(
    runtime: &Runtime,
    name: &str,
    mounted: &Mounted<'_>,
    mounts: &[(VolumeId, &Mount)],
) -> Result<Option<NodeId>, Refusal> {
    let attached = mounted.attached.iter();
    let staying = attached.filter(|(_, at)| mounted.stays(at, mounts));
    let volumes = staying.map(|(_, at)| at.volume);
    let volumes = volumes.chain(mounts.iter().map(|(id, _)| *id));
    let homes = volumes.filter_map(|id| Some(runtime.plan.volumes.get(&id)?.home));
    let mut homes: BTreeSet<NodeId> = homes.collect();
    let home = homes.pop_first();
    if homes.is_empty() {
        return Ok(home);
    }
    let why = format!("the volumes of `{name}` are on different nodes");
    let fix = "restore one of them from a snapshot onto the other's node";
    Err(Refusal::new("volume_constraints_invalid", why, fix))
}

/// Checks that a process type can use a volume that is there already.
fn reuse(it: &Preflight<'_>, name: &str, id: VolumeId, size: u64) -> Result<(), Refusal> {
    let runtime = it.desk.runtime();
    let Some(volume) = runtime.volumes.get(&id) else {
        return Err(super::missing("volume"));
    };
    if !may_mount(it, name, id) {
        return Err(unusable(name, volume));
    }
    if volume.size != size {
        let why = format!("`{}` has {} bytes and keeps them", volume.name, volume.size);
        let fix = "declare the size that it has";
        return Err(Refusal::new("volume_size_change_unsupported", why, fix));
    }
    let mut others = runtime.attachments.values();
    let taken = others.any(|at| at.volume == id && (at.env != it.env.0 || at.process != name));
    match taken || !is_usable(runtime, id) {
        true => Err(unusable(name, volume)),
        false => Ok(()),
    }
}

fn is_usable(runtime: &Runtime, id: VolumeId) -> bool {
    let plan = runtime.plan.volumes.get(&id);
    plan.is_some_and(|plan| !USELESS.contains(&plan.state))
}

/// Whether a process type may mount a volume that is there already. Its name
/// does not say whose it is: `a/b-c` and `a-b/c` call theirs the same. So it
/// mounts it now, or whoever deploys may give it away.
fn may_mount(it: &Preflight<'_>, process: &str, volume: VolumeId) -> bool {
    let (env, _) = it.env;
    let mut own = it.desk.runtime().attachments.values();
    let mounts = own.any(|at| at.volume == volume && at.env == env && at.process == process);
    let id = volume.to_string();
    mounts || it.desk.reaches("volume.write", ("volume", &id))
}

fn unusable(name: &str, volume: &record::Volume) -> Refusal {
    let why = format!("`{}` cannot be used by `{name}`", volume.name);
    let fix = "look at the volume's state and attachments, or let somebody deploy it who may \
               write volumes of the whole organisation";
    Refusal::new("volume_constraints_invalid", why, fix)
}

/// The fact that a volume belongs to a process type no more.
pub(super) fn detached(id: AttachmentId, it: &record::Attachment) -> Fact {
    let deleted = VolumeAttachmentDeleted {
        volume_id: it.volume,
        process: it.process.clone(),
    };
    Fact::new(id, deleted.into())
}

/// Undoes what a deploy did to the volumes of a process type, for the release
/// that it goes back to; what somebody changed by hand meanwhile stays.
///
/// # Errors
/// A volume that the process type had is gone, or another's.
pub(crate) fn given_back(
    runtime: &Runtime,
    deploy: &record::Deploy,
    process: &str,
    bits: impl Fn() -> u128,
) -> Result<Vec<Fact>, Refusal> {
    let is_own = |at: &record::Attachment| at.env == deploy.env && at.process == process;
    let made = |id: &AttachmentId| deploy.attached.contains(id);
    let attached = runtime.attachments.iter();
    let mut facts: Vec<Fact> = attached
        .filter(|(id, at)| made(id) && is_own(at))
        .map(|(id, at)| detached(*id, at))
        .collect();
    for had in deploy.detached.iter().filter(|had| is_own(had)) {
        let left = runtime.attachments.iter();
        let left = left.filter(|(id, _)| !made(id)).map(|(_, at)| at);
        let taken = |at: &record::Attachment| at.volume == had.volume && !is_own(at);
        if left.clone().any(taken) || !is_usable(runtime, had.volume) {
            let volume = runtime.volumes.get(&had.volume);
            let name = volume.map_or_else(|| had.volume.to_string(), |it| it.name.clone());
            let why = format!("`{process}` had `{name}` before, which is gone or another's now");
            let fix = "detach it there first, or deploy what should run instead";
            return Err(Refusal::new("volume_constraints_invalid", why, fix));
        }
        let there = |at: &record::Attachment| {
            is_own(at) && (at.volume == had.volume || at.mount_path == had.mount_path)
        };
        if left.clone().any(there) {
            continue;
        }
        let created = VolumeAttachmentCreated {
            volume_id: had.volume,
            process: had.process.clone(),
            mount_path: had.mount_path.clone(),
            read_only: had.read_only,
        };
        let id = AttachmentId::from_bits(bits());
        facts.push(Fact::new(id, created.into()));
    }
    Ok(facts)
}
