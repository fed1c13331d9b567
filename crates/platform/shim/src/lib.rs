//! Holds one instance in namespaces of this machine's kernel.
//!
//! The shim is a process of its own, started by the node's agent and outliving
//! it: it makes what an instance is inside of (`inside`, `root`, `network`,
//! `cgroup`), becomes the parent of its first process, `fluffy-init`, and
//! writes down how that ended. It speaks with nobody. The agent speaks with
//! init over the guest link, and knows what is in [`Order`] and [`Ended`].
//! Start with `shim`.

#[cfg(target_os = "linux")]
mod call;
#[cfg(target_os = "linux")]
pub mod cgroup;
#[cfg(target_os = "linux")]
pub mod firewall;
#[cfg(target_os = "linux")]
pub mod format;
#[cfg(target_os = "linux")]
mod inside;
#[cfg(target_os = "linux")]
mod netlink;
#[cfg(target_os = "linux")]
mod network;
#[cfg(target_os = "linux")]
mod root;
#[cfg(target_os = "linux")]
mod shim;
#[cfg(target_os = "linux")]
pub mod watch;

use std::net::Ipv6Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[cfg(target_os = "linux")]
pub use call::landlock_version;
#[cfg(target_os = "linux")]
pub use shim::{clean, probe, probe_disk, probe_files, worker_main};

/// The program that is an instance's first process, linked statically; empty
/// where no instance can run.
pub const INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fluffy-init"));

/// How many user and group ids an instance has.
pub const IDS: u32 = 65_536;

/// What a shim is to hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Which instance.
    pub instance: String,
    /// Which start of it.
    pub boot: String,
    /// Where the end is written down, and the console.
    pub dir: PathBuf,
    /// Where the node reaches init.
    pub link: PathBuf,
    /// The image's root file system: an EROFS file, or the folder that one was
    /// unfolded into.
    pub root: PathBuf,
    /// The first of its own user and group ids on the host.
    pub uid_base: u32,
    /// What it may use of memory, all together.
    pub memory_bytes: u64,
    /// What it may write to its file system where `scratch` is missing. It is
    /// kept in memory then, so a quarter of that is the most.
    pub disk_bytes: u64,
    /// The file with an unused file system that it writes to.
    #[serde(default)]
    pub scratch: Option<PathBuf>,
    /// Thousandths of a processor, as a weight.
    pub cpu_millis: u64,
    /// The most processes.
    pub pids: u32,
    /// Its control group, below each hierarchy.
    pub group: String,
    /// The host's end of its network.
    pub interface: String,
    /// Its address.
    pub address: Ipv6Addr,
    /// Where everything else is.
    pub gateway: Ipv6Addr,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// The largest packet.
    pub mtu: u32,
}

impl Order {
    /// Where the end is written down.
    #[must_use]
    pub fn exit_file(&self) -> PathBuf {
        self.dir.join("exit.json")
    }

    /// Where the last words of init are that no link carried.
    #[must_use]
    pub fn console_file(&self) -> PathBuf {
        self.dir.join("console.log")
    }
}

/// What a shim says to whoever started it, as one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Word {
    /// Init runs.
    Ready,
    /// It does not; everything is undone.
    Failed(Failure),
}

/// Why an instance was not made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Failure {
    /// `container_start_failed`, `rootfs_build_failed`, `network_setup_failed`.
    pub code: String,
    /// What was being done, and what the system said.
    pub detail: String,
}

/// How an instance ended, as `exit.json` has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Which start of it.
    pub boot_id: String,
    /// What the workload ended with.
    pub exit_code: Option<i32>,
    /// By which signal.
    pub signal: Option<i32>,
    /// Whether the kernel ended something for its memory.
    pub oom: bool,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Why the workload never ran.
    pub failed: Option<String>,
    /// The most memory it ever used, in bytes; zero if the kernel does not say.
    #[serde(default)]
    pub memory_peak_bytes: u64,
}
