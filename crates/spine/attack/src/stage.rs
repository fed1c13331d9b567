//! What an attempt is told: where the canaries are, never what they hold.
//!
//! Travels as one JSON argument into the sandbox. Must never carry a secret
//! (except a sibling's own), or an attempt could "find" what it was handed.
//! The host's half is `ground`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The longest stage a worker reads.
pub(crate) const LONGEST_STAGE: usize = 64 * 1024;

/// Every secret of a canary starts like this, so an attempt can look for it.
pub const SECRET_PREFIX: &str = "FLUFFY-CANARY-";

/// The surroundings of one attempt, as an attacker could learn them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Different in every run; marks what belongs to it.
    pub nonce: String,
    /// Which visit this is.
    pub visit: Visit,
    /// What the sandbox is supposed to hold back.
    pub limits: Limits,
    /// The project, as the host knows it.
    pub project: PathBuf,
    /// A folder beside the project, full of canaries.
    pub outside: PathBuf,
    /// A folder whose name starts with the project's name.
    pub lookalike: PathBuf,
    /// The user's home.
    pub home: PathBuf,
    /// A canary in the host's `/tmp`.
    pub temporary: PathBuf,
    /// A canary in the host's `/dev/shm`.
    pub shared_memory: PathBuf,
    /// A process of the host.
    pub victim: i32,
    /// An open file of whoever starts the sandbox.
    pub descriptor: i32,
    /// An open folder of whoever starts the sandbox.
    pub folder: i32,
    /// An address of this machine that is not loopback.
    pub address: Option<IpAddr>,
    /// A port that listens on every address of the host.
    pub tcp: u16,
    /// A port that listens on the host's `::1`.
    pub tcp6: Option<u16>,
    /// A port that takes datagrams on every address of the host.
    pub udp: u16,
    /// A port the proxy permits, as [`PERMITTED_HOST`].
    pub permitted: u16,
    /// An abstract socket of the host.
    pub abstract_name: String,
    /// A System V segment of the host.
    pub segment: Option<i32>,
    /// The name of a key in the user's keyring.
    pub key: Option<String>,
    /// The secret of a sandbox beside; told to that one alone.
    pub secret: Option<String>,
}

/// The host that the proxy permits in attacks behind it.
pub const PERMITTED_HOST: &str = "permitted.test";

impl Stage {
    /// The canary file outside.
    pub(crate) fn canary(&self) -> PathBuf {
        self.outside.join("canary")
    }

    /// The socket that stands for the container engine's.
    pub(crate) fn engine_socket(&self) -> PathBuf {
        self.outside.join("docker.sock")
    }

    /// The socket that stands for the ssh agent's.
    pub(crate) fn agent_socket(&self) -> PathBuf {
        self.outside.join("agent.sock")
    }

    /// The socket that stands for the desktop's bus.
    pub(crate) fn bus_socket(&self) -> PathBuf {
        self.outside.join("bus")
    }

    /// A name nobody else uses.
    pub(crate) fn unique(&self) -> String {
        format!("fluffy-attack-{}", self.nonce)
    }

    /// The project as the attempt sees it: where it was started.
    pub(crate) fn here(&self) -> PathBuf {
        std::env::current_dir().unwrap_or_else(|_| Path::new(".").to_owned())
    }
}

/// Which visit to a sandbox this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Visit {
    /// The attempt itself.
    First,
    /// A look from a second sandbox at what the first left.
    Second,
    /// A sandbox beside the first.
    Sibling,
}

/// What a sandbox is supposed to hold back; attempts go well beyond that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: u64,
    /// Processes and threads.
    pub pids: u32,
    /// Bytes in one file.
    pub file_size: u64,
    /// Bytes in the layer.
    pub disk: u64,
    /// Bytes in each private file system in memory.
    pub tmpfs: u64,
    /// Files in each private file system in memory.
    pub tmpfs_files: u64,
    /// Open files of one process.
    pub descriptors: u64,
    /// Bytes of output.
    pub output: u64,
    /// Time, in milliseconds.
    pub time_ms: u64,
}

impl Limits {
    /// Small limits, so that a trial is quick and a failing guard harmless.
    pub const TRIAL: Self = Self {
        memory: 128 << 20,
        pids: 48,
        file_size: 64 << 20,
        disk: 96 << 20,
        tmpfs: 48 << 20,
        tmpfs_files: 16_384,
        descriptors: 16_384,
        output: 8 << 20,
        time_ms: 3000,
    };

    /// The time as a duration.
    #[must_use]
    pub const fn time(&self) -> Duration {
        Duration::from_millis(self.time_ms)
    }
}
