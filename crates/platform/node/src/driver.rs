//! What runs an instance: the seam between the agent and the ways to isolate.
//!
//! A driver makes the walls and what is inside them, and takes them away again;
//! it decides nothing. What it has to remember of an instance is in its
//! [`Handle`], which the agent keeps: a driver has no memory of its own, so an
//! agent that was killed goes on where it was. Config and secrets go over the
//! guest link, never through here.

#[cfg(target_os = "linux")]
mod connections;
pub mod rootfs;
pub mod scratch;

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;

use fluffy_contract::BoxFuture;
use serde::{Deserialize, Serialize};

/// Starts, adopts and ends instances in one way.
///
/// Every call may be repeated: what is done already is not an error.
pub trait InstanceDriver: Send + Sync + fmt::Debug {
    /// Its name in plans and facts: `container-rootfs`.
    fn name(&self) -> &'static str;

    /// How strongly it isolates.
    fn level(&self) -> Level;

    /// Whether this machine can do it, found out by doing it.
    fn probe(&self) -> BoxFuture<'_, Result<Probe, Unavailable>>;

    /// Starts one instance; what fails undoes what was done.
    ///
    /// The guest's end of the link listens at [`Handle::link`] when this
    /// returns, or soon after.
    fn start<'a>(&'a self, order: &'a StartOrder) -> BoxFuture<'a, Result<Handle, StartFailure>>;

    /// What became of one that was started, maybe by an agent before this one.
    fn adopt<'a>(&'a self, handle: &'a Handle) -> BoxFuture<'a, Adoption>;

    /// Resolves when the instance has ended, at once if it has; what ends it
    /// may be inside, outside or the host's own doing.
    fn ended<'a>(&'a self, handle: &'a Handle) -> BoxFuture<'a, Option<ExitRecord>>;

    /// Ends everything inside at once; returns when nothing of it runs.
    fn kill<'a>(&'a self, handle: &'a Handle) -> BoxFuture<'a, Result<(), DriverError>>;

    /// Removes what is left of an ended instance outside its directory:
    /// mounts, devices, interfaces, cgroups, sockets.
    fn clean<'a>(&'a self, handle: &'a Handle) -> BoxFuture<'a, Result<(), DriverError>>;

    /// What it uses now.
    fn stats<'a>(&'a self, handle: &'a Handle) -> BoxFuture<'a, Result<Stats, DriverError>>;

    /// How many connections from outside it still has, where that can be seen.
    fn connections<'a>(&'a self, _handle: &'a Handle) -> BoxFuture<'a, Option<u64>> {
        Box::pin(std::future::ready(None))
    }

    /// Why nobody gets through to one of these ports though it is open, where
    /// that is so and can be seen.
    fn unreached<'a>(
        &'a self,
        _handle: &'a Handle,
        _ports: &'a [u16],
    ) -> BoxFuture<'a, Option<String>> {
        Box::pin(std::future::ready(None))
    }

    /// Looks after what keeps all its instances apart from the machine and
    /// from each other, outside of them; what was changed is put right again.
    fn guard(&self) -> BoxFuture<'_, Result<Guarded, DriverError>> {
        Box::pin(std::future::ready(Ok(Guarded::default())))
    }

    /// Ends and removes what is on this machine of this driver and node, and
    /// belongs to none of the `known` instance ids; says what it was.
    fn sweep<'a>(&'a self, known: &'a [String]) -> BoxFuture<'a, Vec<String>>;
}

/// How strongly a driver isolates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// A virtual machine with the processor's help.
    Microvm,
    /// A virtual machine without it.
    MicrovmEmulated,
    /// Namespaces of the host's own kernel.
    SharedKernel,
}

impl Level {
    /// As facts and status pages write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Microvm => "microvm",
            Self::MicrovmEmulated => "microvm-emulated",
            Self::SharedKernel => "shared-kernel",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a driver can do on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The most processors of one instance.
    pub max_vcpus: u64,
    /// The most memory of one instance, in bytes.
    pub max_memory_bytes: u64,
    /// Memory that an instance costs beside its own, in bytes.
    pub overhead_bytes: u64,
    /// Where what an instance writes goes.
    pub room: Room,
    /// What it found, in a few words, for the doctor.
    pub detail: String,
}

/// Where what an instance writes to its own file system goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Room {
    /// A disk of its own, as large as was declared.
    Disk,
    /// Its memory, a quarter of it at most; why there is no disk.
    Memory(Unavailable),
}

impl Room {
    /// What an instance gets less than it declares, for people; nothing where
    /// it gets all of it.
    #[must_use]
    pub fn shortfall(&self) -> Option<String> {
        match self {
            Self::Disk => None,
            Self::Memory(why) => Some(format!(
                "what instances write is kept in their memory, a quarter of it at most, \
                 whatever disk they declare: {why}; {}",
                why.fix
            )),
        }
    }
}

/// Why a driver cannot be used here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Unavailable {
    /// What is missing, in words for people.
    pub reason: String,
    /// What would help, if anything.
    pub fix: String,
}

/// What is to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartOrder {
    /// `inst_…`.
    pub instance_id: String,
    /// The plan's generation of it.
    pub generation: u64,
    /// `boot_…`, new for every start.
    pub boot_id: String,
    /// `instances/<id>`, made by the agent, 0700: scratch, `exit.json`, console.
    pub dir: PathBuf,
    /// A short path on a tmpfs, made by the agent, 0700: sockets.
    pub run_dir: PathBuf,
    /// The image's root file system, an EROFS file.
    pub root: PathBuf,
    /// The first of this instance's own range of user ids on the host.
    pub uid_base: u32,
    /// What it may use of memory, without the driver's overhead.
    pub memory_bytes: u64,
    /// Thousandths of a processor, as a weight.
    pub cpu_millis: u64,
    /// The most processes.
    pub pids: u32,
    /// The most bytes it may write to its own file system.
    pub disk_bytes: u64,
    /// Its place in the network.
    pub network: Network,
}

/// An instance's place in the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Its own address, /128.
    pub address: Ipv6Addr,
    /// Where everything else is: `fe80::1`.
    pub gateway: Ipv6Addr,
    /// Its interface's hardware address.
    pub mac: [u8; 6],
    /// The largest packet.
    pub mtu: u32,
    /// What it calls itself.
    pub hostname: String,
}

/// What a driver needs to find a started instance again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    /// Which driver made it.
    pub driver: String,
    /// `inst_…`.
    pub instance_id: String,
    /// `boot_…` of this start.
    pub boot_id: String,
    /// The process that holds the instance, and when it started: field 22 of
    /// `/proc/<pid>/stat`.
    pub shim: (u32, u64),
    /// The boot of the host in which it was started.
    pub host_boot: String,
    /// Device and inode of the program of the shim.
    pub program: (u64, u64),
    /// Its cgroup, by path below the hierarchy.
    pub cgroup: String,
    /// The host's end of its network, by name.
    pub interface: String,
    /// Where the guest's end of the link is reached.
    pub link: PathBuf,
    /// Where the shim leaves how it ended.
    pub exit: PathBuf,
    /// Where the console's last bytes are.
    pub console: PathBuf,
    /// What only the driver itself understands.
    #[serde(default)]
    pub own: std::collections::BTreeMap<String, String>,
}

/// Why an instance did not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct StartFailure {
    /// The reason code of the report: `container_start_failed`,
    /// `network_setup_failed`, `rootfs_build_failed`.
    pub code: &'static str,
    /// What happened, for people; one line.
    pub detail: String,
}

/// What became of a started instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adoption {
    /// It runs, and it is the same one.
    Alive,
    /// It ended and left a record.
    Exited(ExitRecord),
    /// It is gone and nobody saw how; what is left of it was ended.
    Lost,
}

/// How an instance ended: what the shim writes as `exit.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// `boot_…` of this start.
    pub boot_id: String,
    /// What it ended with, if by itself.
    pub exit_code: Option<i32>,
    /// The signal's number, if by one.
    pub signal: Option<i32>,
    /// Whether the kernel ended it for its memory.
    pub oom: bool,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Why it never ran, if it did not; one line.
    pub failed: Option<String>,
    /// The most memory it ever used, in bytes; zero if nobody knows.
    #[serde(default)]
    pub memory_peak_bytes: u64,
}

/// What an instance uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Memory now, in bytes.
    pub memory_bytes: u64,
    /// The most memory ever, in bytes, if the kernel tells.
    pub memory_peak_bytes: u64,
    /// Processor time ever, in microseconds.
    pub cpu_usec: u64,
    /// Processes now.
    pub processes: u64,
    /// How many of its processes the kernel ended for their memory, ever.
    pub oom_kills: u64,
}

/// How what keeps instances apart was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guarded {
    /// Whether it had to be put right.
    pub was_wrong: bool,
    /// Packets that were kept back, ever, by why.
    pub dropped: Vec<(&'static str, u64)>,
}

/// Something that a driver could not do to a started instance.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct DriverError {
    /// What was tried, in words for people.
    pub what: String,
    /// What the system said.
    #[source]
    pub source: std::io::Error,
}
