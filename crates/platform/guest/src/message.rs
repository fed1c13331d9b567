//! What the two ends say to each other, as JSON on the channel of control.
//!
//! Fields that are not known are ignored and messages that are not known are
//! [`FromHost::Unknown`] and [`FromGuest::Unknown`], so that either side may be
//! newer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::GuestConfig;

/// The versions of the protocol that somebody understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The oldest.
    pub min: u32,
    /// The newest.
    pub max: u32,
}

impl Versions {
    /// The newest version that both understand.
    #[must_use]
    pub fn common(self, other: Self) -> Option<u32> {
        let newest = self.max.min(other.max);
        (newest >= self.min.max(other.min)).then_some(newest)
    }
}

/// What the node says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromHost {
    /// What to run; a frame of secrets follows if it says so.
    Config(Box<GuestConfig>),
    /// How is it?
    StateQuery,
    /// End the workload, and then the guest.
    Stop {
        /// Which signal first, as `TERM`; else that of the config.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<String>,
        /// How long until all are killed; else that of the config.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_ms: Option<u64>,
        /// Why, for the guest's log.
        #[serde(default)]
        reason: String,
    },
    /// Send a signal to the workload's process group.
    Signal {
        /// Which, as `HUP`.
        signal: String,
    },
    /// Stop writes to a volume.
    Freeze {
        /// Where it is mounted.
        mount: String,
        /// When the guest lets it go on by itself.
        timeout_ms: u64,
    },
    /// Let writes to a volume go on.
    Thaw {
        /// Where it is mounted.
        mount: String,
    },
    /// Start a command beside the workload.
    ExecOpen(ExecOpen),
    /// The terminal of a command has another size.
    ExecResize {
        /// Which command.
        channel: u32,
        /// Its columns.
        cols: u16,
        /// Its rows.
        rows: u16,
    },
    /// Send a signal to a command's process group.
    ExecSignal {
        /// Which command.
        channel: u32,
        /// Which, as `INT`.
        signal: String,
    },
    /// The node wants nothing to do with this guest.
    Reject {
        /// Why: `protocol_mismatch`, `instance_mismatch`, `duplicate_boot`.
        code: String,
    },
    /// Something newer.
    #[serde(other)]
    Unknown,
}

/// A command beside the workload.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExecOpen {
    /// Its channel, even and never used before on this link; the next one is
    /// for its error output.
    pub channel: u32,
    /// What to run.
    pub command: Vec<String>,
    /// Whether it gets a terminal.
    #[serde(default)]
    pub tty: bool,
    /// The terminal's columns.
    #[serde(default)]
    pub cols: u16,
    /// The terminal's rows.
    #[serde(default)]
    pub rows: u16,
    /// Variables beside those of the workload.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Whether it gets an input.
    #[serde(default)]
    pub stdin: bool,
    /// Whether it is started as the user 0 of the guest.
    #[serde(default)]
    pub as_root: bool,
}

/// What the guest says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromGuest {
    /// The first message on every link.
    Hello(Hello),
    /// The config is accepted, not yet applied.
    Ack {
        /// Its version.
        config_version: String,
        /// Its generation.
        generation: u64,
        /// Its digest, as it came.
        config_sha256: String,
    },
    /// The config is refused; the guest ends.
    Nack {
        /// Why.
        code: String,
        /// More of it, for people.
        detail: String,
    },
    /// Something happened.
    Status(Status),
    /// The answer to `state_query`.
    State(State),
    /// A command runs.
    ExecOpened {
        /// Which.
        channel: u32,
        /// Its process, as the guest counts.
        pid: u32,
    },
    /// A command does not run.
    ExecError {
        /// Which.
        channel: u32,
        /// Why.
        code: String,
        /// More of it, for people.
        detail: String,
    },
    /// A command ended; all its output was sent before.
    ExecExit {
        /// Which.
        channel: u32,
        /// With which code.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// By which signal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
    },
    /// What is used, every 10 s.
    Stats(Stats),
    /// The answer to `freeze` and `thaw`.
    FreezeDone {
        /// Which volume.
        mount: String,
        /// Why it did not work.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// Something newer.
    #[serde(other)]
    Unknown,
}

/// Who a guest is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// What it understands.
    pub protocol: Versions,
    /// The version of its init.
    pub init_version: String,
    /// Which instance it was started as.
    pub instance_id: String,
    /// Which start of it this is.
    pub boot_id: String,
    /// The kernel it runs on.
    #[serde(default)]
    pub kernel: String,
    /// What it can do beside the protocol.
    #[serde(default)]
    pub features: Vec<String>,
    /// Its disks.
    #[serde(default)]
    pub disks: Vec<Disk>,
}

/// A disk of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// As the kernel calls it.
    pub name: String,
    /// Its serial.
    pub serial: String,
    /// Its size.
    pub bytes: u64,
}

/// Something that happened in a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// When, in milliseconds of the guest's life.
    pub mono_ms: u64,
    /// What.
    #[serde(flatten)]
    pub what: Happening,
}

/// What happened in a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Happening {
    /// Everything before the workload is done.
    ConfigApplied,
    /// The workload runs.
    WorkloadStarted {
        /// Its process, as the guest counts.
        pid: u32,
    },
    /// It will not run.
    Failed {
        /// Why, one of those of section 6.4.
        code: String,
        /// More of it, for people.
        detail: String,
    },
    /// The workload ended, and with it the guest.
    Exited {
        /// With which code.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// By which signal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        /// Whether memory was used up.
        #[serde(default)]
        oom: bool,
        /// How long it ran.
        runtime_ms: u64,
    },
    /// Something newer.
    #[serde(other)]
    Unknown,
}

/// How far a guest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It waits for its config.
    Waiting,
    /// It applies its config.
    Applying,
    /// It runs what comes before the workload.
    Prestart,
    /// The workload runs.
    Running,
    /// The workload was told to end.
    Stopping,
    /// The workload ended, or will never run.
    Ended,
    /// Something newer.
    #[serde(other)]
    Unknown,
}

/// How a guest is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Which start this is.
    pub boot_id: String,
    /// How far it is.
    pub phase: Phase,
    /// Which config it has.
    #[serde(default)]
    pub generation: u64,
    /// The workload's process, as the guest counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_pid: Option<u32>,
    /// When the workload began, in milliseconds of the guest's life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_started_mono_ms: Option<u64>,
    /// How it failed or ended, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Status>,
    /// The channels of commands that run.
    #[serde(default)]
    pub exec_sessions: Vec<u32>,
    /// The last sequences of the channels of logs 1, 2 and 3.
    #[serde(default)]
    pub log_sequences: [u64; 3],
}

/// What a guest uses.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Memory in use.
    pub memory_bytes: u64,
    /// Memory there is.
    pub memory_total_bytes: u64,
    /// The load of the last minute, in thousandths.
    pub load_milli: u64,
    /// Its processes.
    pub processes: u32,
    /// What is used of each mount.
    #[serde(default)]
    pub mounts: Vec<MountStats>,
}

/// What is used of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStats {
    /// Where it is.
    pub path: String,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes there are.
    pub total_bytes: u64,
}
