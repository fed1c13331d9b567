//! The canonical form: defaults applied, keys sorted, and its hash.
//!
//! Two manifests that mean the same have the same bytes here. Numbers are
//! integers, so the form of RFC 8785 is exact.

use fluffy_base::{Digest, canonical};
use serde_json::{Map, Value, json};

use crate::model::{
    Deploy, Health, Manifest, OnFailure, Override, Probe, Process, PullPolicy, RestartPolicy,
    Scaling, Signal,
};

impl Manifest {
    /// The canonical text, which is hashed and stored.
    #[must_use]
    pub fn canonical(&self) -> String {
        // Every number is an integer below 2^53, so this cannot fail.
        canonical::to_string(&self.to_json()).unwrap_or_default()
    }

    /// The hash of the canonical text.
    #[must_use]
    pub fn hash(&self) -> Digest {
        Digest::of(self.canonical().as_bytes())
    }

    fn to_json(&self) -> Value {
        let processes = self.processes.iter();
        let volumes = self.volumes.iter().map(|(name, volume)| {
            let value = json!({"size": volume.size, "filesystem": "ext4",
                "backup_enabled": volume.backup_enabled});
            (name.clone(), value)
        });
        let overrides = self.overrides.iter();
        json!({
            "schema_version": "v1",
            "app": {"name": self.app.name, "description": self.app.description},
            "image": {
                "ref": self.image.reference,
                "pull_policy": match self.image.pull_policy {
                    PullPolicy::IfNotPresent => "if_not_present",
                    PullPolicy::Always => "always",
                },
            },
            "deploy": deploy(&self.deploy),
            "processes": processes
                .map(|(name, it)| (name.clone(), process(it)))
                .collect::<Map<_, _>>(),
            "volumes": volumes.collect::<Map<_, _>>(),
            "overrides": overrides
                .map(|(name, it)| (name.clone(), changes(it)))
                .collect::<Map<_, _>>(),
        })
    }
}

fn deploy(deploy: &Deploy) -> Value {
    json!({
        "strategy": "rolling",
        "max_surge": deploy.max_surge,
        "max_unavailable": deploy.max_unavailable,
        "timeout_seconds": deploy.timeout_seconds,
        "min_ready_seconds": deploy.min_ready_seconds,
        "on_failure": match deploy.on_failure {
            OnFailure::Rollback => "rollback",
            OnFailure::Pause => "pause",
        },
    })
}

fn process(process: &Process) -> Value {
    let (policy, max_retries) = match process.restart.policy {
        RestartPolicy::Always => ("always", None),
        RestartPolicy::OnFailure { max_retries } => ("on-failure", Some(max_retries)),
        RestartPolicy::Never => ("never", None),
    };
    let signal = match process.stop.signal {
        Signal::Term => "TERM",
        Signal::Int => "INT",
        Signal::Quit => "QUIT",
        Signal::Hup => "HUP",
    };
    let prestart = process.prestart.iter();
    let ports = process.ports.iter();
    let mut mounts: Vec<_> = process.mounts.iter().collect();
    mounts.sort_by_key(|mount| (&mount.volume, &mount.path));
    json!({
        "command": process.command,
        "workdir": process.workdir,
        "user": process.user,
        "vars": process.vars,
        "prestart": prestart
            .map(|it| json!({"command": it.command, "timeout_seconds": it.timeout_seconds}))
            .collect::<Vec<_>>(),
        "resources": {
            "memory": process.resources.memory,
            "cpu_millis": process.resources.cpu_millis,
            "disk": process.resources.disk,
        },
        "replicas": process.replicas,
        "scaling": scaling(&process.scaling),
        "restart": {
            "policy": policy,
            "max_retries": max_retries,
            "backoff_seconds": process.restart.backoff_seconds,
        },
        "stop": {"signal": signal, "grace_seconds": process.stop.grace_seconds},
        "ports": ports
            .map(|it| json!({"name": it.name, "internal": it.internal, "protocol": "tcp"}))
            .collect::<Vec<_>>(),
        "health": process.health.as_ref().map(health),
        "mounts": mounts
            .iter()
            .map(|it| json!({"volume": it.volume, "path": it.path, "read_only": it.read_only}))
            .collect::<Vec<_>>(),
        "secrets": {"required": process.secrets_required},
    })
}

fn health(health: &Health) -> Value {
    let (kind, path) = match &health.probe {
        Probe::Tcp => ("tcp", None),
        Probe::Http { path } => ("http", Some(path)),
    };
    json!({
        "type": kind,
        "path": path,
        "port": health.port,
        "interval_seconds": health.interval_seconds,
        "timeout_seconds": health.timeout_seconds,
        "grace_period_seconds": health.grace_period_seconds,
        "success_threshold": health.success_threshold,
        "failure_threshold": health.failure_threshold,
        "start_timeout_seconds": health.start_timeout_seconds,
    })
}

fn scaling(scaling: &Scaling) -> Value {
    json!({"min": scaling.min, "max": scaling.max})
}

fn changes(changes: &Override) -> Value {
    let processes = changes.processes.iter().map(|(name, it)| {
        let value = json!({
            "replicas": it.replicas,
            "scaling": it.scaling.as_ref().map(scaling),
            "resources": {"memory": it.memory, "cpu_millis": it.cpu_millis, "disk": it.disk},
            "vars": it.vars,
        });
        (name.clone(), value)
    });
    json!({"vars": changes.vars, "processes": processes.collect::<Map<_, _>>()})
}
