//! What an instance of a process type is: its spec, and the hash of that.
//!
//! A spec follows from a release, the name of the env, the volumes attached and
//! the version of the secrets, all of which never change by themselves; so an
//! old instance's spec can be made again as long as it runs. Next: `workload`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::types::{DeployOptions, OnFailure as ApiOnFailure};
use fluffy_base::id::{EnvId, ReleaseId, SecretVersionId, VolumeId};
use fluffy_base::{Digest, canonical};
use fluffy_manifest::model::{Process, RestartPolicy, Signal};
use fluffy_planner::model::{
    Arch, DeployKind, Downtime, Driver, Group, GroupId, OnFailure, Resources, RolloutOptions,
    SecretUse, Spec,
};
use serde_json::{Value, json};

use super::Runtime;
use super::record::Wanted;
use crate::event::{AllocatedMount, ResolvedDigest};

/// How long an instance without a health check has to become ready.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// The name of a group.
#[must_use]
pub fn group_id(env: EnvId, process: &str) -> GroupId {
    GroupId {
        env,
        process: Arc::from(process),
    }
}

pub(crate) fn group_mut<'a>(
    runtime: &'a mut Runtime,
    env: EnvId,
    process: &str,
) -> Option<&'a mut Group> {
    runtime.plan.groups.get_mut(&group_id(env, process))
}

/// Brings a group in step with what is wanted of it.
pub(crate) fn refresh(runtime: &mut Runtime, env: EnvId, process: &str, seq: u64) {
    let id = group_id(env, process);
    let wanted = runtime.wanted(env, process);
    let Some((spec, count)) = wanted.and_then(|wanted| runtime.spec(env, process, wanted)) else {
        if let Some(group) = runtime.plan.groups.get_mut(&id) {
            (group.count, group.version) = (0, seq);
        }
        forget(runtime, &id);
        return;
    };
    let group = runtime.plan.groups.entry(id).or_insert_with(|| Group {
        version: seq,
        spec: spec.clone(),
        count,
        held: false,
        conditions: BTreeSet::new(),
        allocation_failed_at: None,
        replaced: Vec::new(),
    });
    (group.version, group.spec, group.count) = (seq, spec, count);
}

/// Forgets a group that nobody wants, once it has no instance.
pub(crate) fn forget(runtime: &mut Runtime, id: &GroupId) {
    let wanted = runtime.wanted(id.env, &id.process).is_some();
    let mut instances = runtime.plan.instances.values();
    if !wanted && !instances.any(|instance| instance.group == *id) {
        runtime.plan.groups.remove(id);
        runtime.groups.remove(id);
    }
}

impl Runtime {
    /// What a process type should run.
    #[must_use]
    pub fn wanted(&self, env: EnvId, process: &str) -> Option<Wanted> {
        self.envs.get(&env)?.desired.get(process).copied()
    }

    /// A process type of a release as it is in an env.
    #[must_use]
    pub fn process(&self, env: EnvId, release: ReleaseId, process: &str) -> Option<Process> {
        let manifest = self.releases.get(&release)?.manifest.as_deref()?;
        let name = &self.envs.get(&env)?.name;
        let base = manifest.processes.get(process)?;
        if !manifest.overrides.contains_key(name) {
            return Some(base.clone());
        }
        manifest.processes_in(name).remove(process)
    }

    /// How many instances a process type should have.
    #[must_use]
    pub fn count(&self, env: EnvId, name: &str, process: &Process) -> u32 {
        let explicit = self.envs.get(&env).and_then(|env| env.scales.get(name));
        explicit.copied().unwrap_or(process.replicas)
    }

    /// The volumes that a process type mounts, by volume and then by path.
    #[must_use]
    pub fn mounts(&self, env: EnvId, process: &str) -> Vec<AllocatedMount> {
        let own = self.attachments.values();
        let own = own.filter(|it| it.env == env && it.process == process);
        let mut mounts: Vec<_> = own
            .map(|it| AllocatedMount {
                volume_id: it.volume,
                mount_path: it.mount_path.clone(),
                read_only: it.read_only,
            })
            .collect();
        mounts.sort_by(|a, b| (a.volume_id, &a.mount_path).cmp(&(b.volume_id, &b.mount_path)));
        mounts
    }

    fn spec(&self, env: EnvId, name: &str, wanted: Wanted) -> Option<(Spec, u32)> {
        let process = self.process(env, wanted.release, name)?;
        let release = self.releases.get(&wanted.release)?;
        let mounts = self.mounts(env, name);
        let volumes: BTreeSet<VolumeId> = mounts.iter().map(|mount| mount.volume_id).collect();
        let inputs = inputs(&process, &release.images, wanted.secrets, &mounts);
        let start = process.health.as_ref();
        let start = start.map(|health| health.start_timeout_seconds);
        let seconds = |seconds: u32| Duration::from_secs(u64::from(seconds));
        let spec = Spec {
            hash: hash(&inputs),
            release: wanted.release,
            images: images(&release.images),
            resources: resources(&process),
            volumes,
            secrets: match process.secrets_required {
                true => SecretUse::Required(wanted.secrets),
                false => SecretUse::Unused,
            },
            start_timeout: start.map_or(START_TIMEOUT, seconds),
            min_ready: seconds(release.manifest.as_deref()?.deploy.min_ready_seconds),
            grace: seconds(process.stop.grace_seconds),
        };
        Some((spec, self.count(env, name, &process)))
    }
}

/// What an instance asks for.
pub(crate) fn resources(process: &Process) -> Resources {
    Resources {
        cpu_millis: u64::from(process.resources.cpu_millis),
        memory: process.resources.memory,
        disk: process.resources.disk,
    }
}

/// Everything that makes an instance what it is, and nothing else.
pub(crate) fn inputs(
    process: &Process,
    images: &[ResolvedDigest],
    secrets: Option<SecretVersionId>,
    mounts: &[AllocatedMount],
) -> Value {
    let images: BTreeMap<String, &str> = images
        .iter()
        .map(|image| {
            (
                format!("{}/{}", image.os, image.arch),
                image.digest.as_str(),
            )
        })
        .collect();
    let prestart = process.prestart.iter();
    let ports = process.ports.iter();
    json!({
        "spec_version": "v1",
        "images": images,
        "command": process.command,
        "workdir": process.workdir,
        "user": process.user,
        "env_vars": process.vars,
        "prestart": prestart
            .map(|it| json!({"command": it.command, "timeout_seconds": it.timeout_seconds}))
            .collect::<Vec<_>>(),
        "stop": {
            "signal": signal(process.stop.signal),
            "grace_seconds": process.stop.grace_seconds,
        },
        "restart": restart(process),
        "resources": {
            "cpu_millis": process.resources.cpu_millis,
            "memory_bytes": process.resources.memory,
            "disk_bytes": process.resources.disk,
        },
        "ports": ports
            .map(|it| json!({"name": it.name, "port": it.internal}))
            .collect::<Vec<_>>(),
        "health": process.health,
        "secrets": {
            "required": process.secrets_required,
            "version": secrets.filter(|_| process.secrets_required),
        },
        "mounts": mounts,
    })
}

pub(crate) fn hash(inputs: &Value) -> Digest {
    // Texts and whole numbers always have a canonical form.
    Digest::of(canonical::to_string(inputs).unwrap_or_default().as_bytes())
}

fn restart(process: &Process) -> Value {
    let (policy, max_retries) = restart_policy(process);
    let backoff = process.restart.backoff_seconds;
    json!({"policy": policy, "max_retries": max_retries, "backoff_seconds": backoff})
}

pub(crate) fn restart_policy(process: &Process) -> (&'static str, Option<u32>) {
    match process.restart.policy {
        RestartPolicy::Always => ("always", None),
        RestartPolicy::OnFailure { max_retries } => ("on-failure", Some(max_retries)),
        RestartPolicy::Never => ("never", None),
    }
}

pub(crate) const fn signal(signal: Signal) -> &'static str {
    match signal {
        Signal::Term => "TERM",
        Signal::Int => "INT",
        Signal::Quit => "QUIT",
        Signal::Hup => "HUP",
    }
}

fn images(images: &[ResolvedDigest]) -> BTreeMap<Arch, Digest> {
    let images = images.iter().filter(|image| image.os == "linux");
    let images = images.filter_map(|image| {
        let digest = image.digest.strip_prefix("sha256:")?;
        Some((arch(&image.arch)?, digest.parse().ok()?))
    });
    images.collect()
}

/// The kind of processors of this name.
#[must_use]
pub fn arch(text: &str) -> Option<Arch> {
    match text {
        "amd64" | "x86_64" => Some(Arch::Amd64),
        "arm64" | "aarch64" => Some(Arch::Arm64),
        _ => None,
    }
}

pub(crate) const fn arch_text(arch: Arch) -> &'static str {
    match arch {
        Arch::Amd64 => "amd64",
        Arch::Arm64 => "arm64",
    }
}

/// The name of a driver in events, which says its level too.
#[must_use]
pub const fn driver_text(driver: Driver) -> &'static str {
    match driver {
        Driver::Firecracker => "microvm-firecracker",
        Driver::Qemu => "microvm-qemu",
        Driver::QemuEmulated => "microvm-qemu-emulated",
        Driver::Container => "container-rootfs",
    }
}

/// The driver of this name.
#[must_use]
pub fn driver(text: &str) -> Option<Driver> {
    [
        Driver::Firecracker,
        Driver::Qemu,
        Driver::QemuEmulated,
        Driver::Container,
    ]
    .into_iter()
    .find(|driver| driver_text(*driver) == text)
}

/// What a deploy is for.
pub(crate) fn deploy_kind(text: &str) -> Option<DeployKind> {
    match text {
        "deploy" => Some(DeployKind::Deploy),
        "rollback" => Some(DeployKind::Rollback),
        "restart" => Some(DeployKind::Restart),
        _ => None,
    }
}

pub(crate) const fn deploy_kind_text(kind: DeployKind) -> &'static str {
    match kind {
        DeployKind::Deploy => "deploy",
        DeployKind::Rollback => "rollback",
        DeployKind::Restart => "restart",
    }
}

/// How a deploy goes, as its event says.
pub(crate) fn options(value: &Value) -> RolloutOptions {
    let written = serde_json::from_value(value.clone());
    let written = written.unwrap_or(DeployOptions {
        max_surge: 1,
        max_unavailable: 0,
        timeout_seconds: 600,
        on_failure: ApiOnFailure::Pause,
        allow_downtime: false,
    });
    RolloutOptions {
        max_surge: written.max_surge,
        max_unavailable: written.max_unavailable,
        timeout: Duration::from_secs(u64::from(written.timeout_seconds)),
        on_failure: match written.on_failure {
            ApiOnFailure::Rollback => OnFailure::Rollback,
            ApiOnFailure::Pause => OnFailure::Pause,
        },
        downtime: match written.allow_downtime {
            true => Downtime::Allowed,
            false => Downtime::Refused,
        },
    }
}

/// How a deploy goes, as an answer says it.
pub(crate) fn options_shown(options: &RolloutOptions) -> DeployOptions {
    DeployOptions {
        max_surge: options.max_surge,
        max_unavailable: options.max_unavailable,
        timeout_seconds: u32::try_from(options.timeout.as_secs()).unwrap_or(u32::MAX),
        on_failure: match options.on_failure {
            OnFailure::Rollback => ApiOnFailure::Rollback,
            OnFailure::Pause => ApiOnFailure::Pause,
        },
        allow_downtime: options.downtime == Downtime::Allowed,
    }
}
