//! The shapes of the canonical form that differ from the model's.
//!
//! Only between bytes and `model`; no rule is checked here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{self, Probe, RestartPolicy, Scaling};

#[derive(Serialize, Deserialize)]
pub(crate) struct Restart {
    policy: Policy,
    max_retries: Option<u32>,
    backoff_seconds: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Policy {
    Always,
    OnFailure,
    Never,
}

impl From<Restart> for model::Restart {
    fn from(written: Restart) -> Self {
        let policy = match written.policy {
            Policy::Always => RestartPolicy::Always,
            Policy::OnFailure => RestartPolicy::OnFailure {
                max_retries: written.max_retries.unwrap_or(0),
            },
            Policy::Never => RestartPolicy::Never,
        };
        Self {
            policy,
            backoff_seconds: written.backoff_seconds,
        }
    }
}

impl From<model::Restart> for Restart {
    fn from(restart: model::Restart) -> Self {
        let (policy, max_retries) = match restart.policy {
            RestartPolicy::Always => (Policy::Always, None),
            RestartPolicy::OnFailure { max_retries } => (Policy::OnFailure, Some(max_retries)),
            RestartPolicy::Never => (Policy::Never, None),
        };
        Self {
            policy,
            max_retries,
            backoff_seconds: restart.backoff_seconds,
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Health {
    path: Option<String>,
    port: u16,
    interval_seconds: u32,
    timeout_seconds: u32,
    grace_period_seconds: u32,
    success_threshold: u32,
    failure_threshold: u32,
    start_timeout_seconds: u32,
}

impl From<Health> for model::Health {
    fn from(written: Health) -> Self {
        Self {
            // Only a probe over HTTP has a path.
            probe: match written.path {
                Some(path) => Probe::Http { path },
                None => Probe::Tcp,
            },
            port: written.port,
            interval_seconds: written.interval_seconds,
            timeout_seconds: written.timeout_seconds,
            grace_period_seconds: written.grace_period_seconds,
            success_threshold: written.success_threshold,
            failure_threshold: written.failure_threshold,
            start_timeout_seconds: written.start_timeout_seconds,
        }
    }
}

impl From<model::Health> for Health {
    fn from(health: model::Health) -> Self {
        Self {
            path: match health.probe {
                Probe::Http { path } => Some(path),
                Probe::Tcp => None,
            },
            port: health.port,
            interval_seconds: health.interval_seconds,
            timeout_seconds: health.timeout_seconds,
            grace_period_seconds: health.grace_period_seconds,
            success_threshold: health.success_threshold,
            failure_threshold: health.failure_threshold,
            start_timeout_seconds: health.start_timeout_seconds,
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Override {
    replicas: Option<u32>,
    scaling: Option<Scaling>,
    resources: Resources,
    vars: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct Resources {
    memory: Option<u64>,
    cpu_millis: Option<u32>,
    disk: Option<u64>,
}

impl From<Override> for model::ProcessOverride {
    fn from(written: Override) -> Self {
        Self {
            replicas: written.replicas,
            scaling: written.scaling,
            memory: written.resources.memory,
            cpu_millis: written.resources.cpu_millis,
            disk: written.resources.disk,
            vars: written.vars,
        }
    }
}

impl From<model::ProcessOverride> for Override {
    fn from(changes: model::ProcessOverride) -> Self {
        Self {
            replicas: changes.replicas,
            scaling: changes.scaling,
            resources: Resources {
                memory: changes.memory,
                cpu_millis: changes.cpu_millis,
                disk: changes.disk,
            },
            vars: changes.vars,
        }
    }
}

pub(crate) mod secrets {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Secrets {
        required: bool,
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
    pub(crate) fn serialize<S: Serializer>(required: &bool, to: S) -> Result<S::Ok, S::Error> {
        Secrets {
            required: *required,
        }
        .serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
        Secrets::deserialize(from).map(|secrets| secrets.required)
    }
}
