//! What a manifest says, with every default applied.
//!
//! Plain data; only `document` makes it, so what is here is valid. It reads its
//! own canonical form back, which says more words than are needed.
//! Next: `canonical` for the form that is hashed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::written;

/// A manifest that is valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The app that the command line means by default; never identity.
    pub app: App,
    /// The image.
    pub image: Image,
    /// How deploys go.
    pub deploy: Deploy,
    /// The process types, by name.
    pub processes: BTreeMap<String, Process>,
    /// The volumes, by name.
    pub volumes: BTreeMap<String, Volume>,
    /// What differs in an env, by the env's name.
    pub overrides: BTreeMap<String, Override>,
}

/// The app that a manifest is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct App {
    /// Its name.
    pub name: Option<String>,
    /// What it is, for people.
    pub description: Option<String>,
}

/// The image that processes are started from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The reference; without one it is named when a release is made.
    #[serde(rename = "ref")]
    pub reference: Option<String>,
    /// When it is pulled.
    pub pull_policy: PullPolicy,
}

/// When an image is pulled.
///
/// A release names its image by digest, and whatever a node has under a digest
/// is that image; so both give the same bytes, and a tag is looked up for every
/// release either way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullPolicy {
    /// Where it is not there.
    #[default]
    IfNotPresent,
    /// For every release.
    Always,
}

/// How deploys go, unless their request says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deploy {
    /// How many instances more there may be on the way.
    pub max_surge: u32,
    /// How many available instances fewer there may be on the way.
    pub max_unavailable: u32,
    /// How long it may take.
    pub timeout_seconds: u32,
    /// How long an instance must have been ready to count.
    pub min_ready_seconds: u32,
    /// What happens when it fails.
    pub on_failure: OnFailure,
}

/// What happens when a deploy fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The release from before comes back.
    Rollback,
    /// The mix stays.
    Pause,
}

/// A process type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The command; none is what the image says.
    pub command: Option<Vec<String>>,
    /// The working directory; none is the image's.
    pub workdir: Option<String>,
    /// The user; none is the image's.
    pub user: Option<String>,
    /// The variables, the env's included.
    pub vars: BTreeMap<String, String>,
    /// What runs before the command, in this order.
    pub prestart: Vec<Prestart>,
    /// What an instance takes.
    pub resources: Resources,
    /// How many instances there are unless somebody says otherwise.
    pub replicas: u32,
    /// The bounds of that.
    pub scaling: Scaling,
    /// What happens when the command ends.
    pub restart: Restart,
    /// How the command is ended.
    pub stop: Stop,
    /// The ports it listens on.
    pub ports: Vec<Port>,
    /// How its health is looked at.
    pub health: Option<Health>,
    /// The volumes it mounts.
    pub mounts: Vec<Mount>,
    /// Whether it needs the env's secrets.
    #[serde(rename = "secrets", with = "written::secrets")]
    pub secrets_required: bool,
}

/// A command that must succeed before the process starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prestart {
    /// The command.
    pub command: Vec<String>,
    /// How long it may take.
    pub timeout_seconds: u32,
}

/// What an instance takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Bytes of memory.
    pub memory: u64,
    /// Thousandths of a processor.
    pub cpu_millis: u32,
    /// Bytes of scratch disk.
    pub disk: u64,
}

/// The bounds of explicit scaling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scaling {
    /// The fewest instances.
    pub min: u32,
    /// The most instances.
    pub max: u32,
}

/// What happens when the command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "written::Restart", into = "written::Restart")]
pub struct Restart {
    /// When it is started again.
    pub policy: RestartPolicy,
    /// The first pause before that.
    pub backoff_seconds: u32,
}

/// When a command is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Whenever it ends.
    Always,
    /// When it fails, this often at most.
    OnFailure {
        /// How often.
        max_retries: u32,
    },
    /// Never.
    Never,
}

/// How a command is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// The signal.
    pub signal: Signal,
    /// How long it has.
    pub grace_seconds: u32,
}

/// A signal that ends a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Signal {
    /// SIGTERM.
    Term,
    /// SIGINT.
    Int,
    /// SIGQUIT.
    Quit,
    /// SIGHUP.
    Hup,
}

/// A port that a process listens on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its number.
    pub internal: u16,
}

/// How the health of a process is looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "written::Health", into = "written::Health")]
pub struct Health {
    /// What is asked.
    pub probe: Probe,
    /// The port.
    pub port: u16,
    /// How often.
    pub interval_seconds: u32,
    /// How long an answer may take.
    pub timeout_seconds: u32,
    /// How long failures do not count after the start.
    pub grace_period_seconds: u32,
    /// How many passes make it ready.
    pub success_threshold: u32,
    /// How many failures make it unhealthy.
    pub failure_threshold: u32,
    /// How long it has to become ready.
    pub start_timeout_seconds: u32,
}

/// What a health check asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// Whether a connection is taken.
    Tcp,
    /// Whether a path answers well.
    Http {
        /// The path.
        path: String,
    },
}

/// A volume in a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The volume's name.
    pub volume: String,
    /// Where it is.
    pub path: String,
    /// Whether it can only be read.
    pub read_only: bool,
}

/// A volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Bytes.
    pub size: u64,
    /// Whether it is backed up.
    pub backup_enabled: bool,
}

/// What differs in an env.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// Variables of all processes.
    pub vars: BTreeMap<String, String>,
    /// What differs in single processes.
    pub processes: BTreeMap<String, ProcessOverride>,
}

/// What differs in a process of an env.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "written::Override", into = "written::Override")]
pub struct ProcessOverride {
    /// Another count.
    pub replicas: Option<u32>,
    /// Other bounds.
    pub scaling: Option<Scaling>,
    /// Other resources, each if it is written.
    pub memory: Option<u64>,
    /// Other processor time.
    pub cpu_millis: Option<u32>,
    /// Another scratch disk.
    pub disk: Option<u64>,
    /// More variables, or others.
    pub vars: BTreeMap<String, String>,
}

impl Manifest {
    /// The processes as they are in an env: its overrides applied.
    #[must_use]
    pub fn processes_in(&self, env: &str) -> BTreeMap<String, Process> {
        let mut processes = self.processes.clone();
        let Some(changes) = self.overrides.get(env) else {
            return processes;
        };
        for (name, process) in &mut processes {
            process.vars.extend(changes.vars.clone());
            let Some(own) = changes.processes.get(name) else {
                continue;
            };
            process.vars.extend(own.vars.clone());
            process.replicas = own.replicas.unwrap_or(process.replicas);
            process.scaling = own.scaling.unwrap_or(process.scaling);
            let resources = &mut process.resources;
            resources.memory = own.memory.unwrap_or(resources.memory);
            resources.cpu_millis = own.cpu_millis.unwrap_or(resources.cpu_millis);
            resources.disk = own.disk.unwrap_or(resources.disk);
        }
        processes
    }
}
