//! What a plugin's sandbox is, for our own launcher.
//!
//! Only says what; the launcher derives the mounts itself and refuses what is
//! outside its roots. Works for every tier: a container has limits and hosts
//! like a process.

use std::path::PathBuf;

use fluffy_base::ByteSize;
use fluffy_policy::host::HostPattern;

use super::{Opened, Places, ProfileError, Seccomp};
use crate::manifest::Execution;

/// What goes into a specification of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeProfile {
    /// What is read besides the plugin's own files.
    pub read: Vec<PathBuf>,
    /// What of that stays unread.
    pub hidden: Vec<PathBuf>,
    /// What is to stay unread and is not there yet. A mount cannot cover it, so
    /// whoever runs the plugin starts it anew when one of these appears.
    pub absent: Vec<PathBuf>,
    /// Whether the plugin's data is there, to be read and written.
    pub data: bool,
    /// What the egress proxy lets through, each with its port; empty means
    /// that there is no proxy.
    pub hosts: Vec<HostPattern>,
    /// Memory of all its processes.
    pub memory: ByteSize,
    /// Thousandths of a processor.
    pub cpu_milli: u32,
    /// Processes and threads.
    pub pids: u32,
    /// Which system calls it may make.
    pub seccomp: Seccomp,
}

/// What our own launcher is told.
///
/// # Errors
/// When a path is not what the manifest says, or cannot be told.
pub fn native(execution: &Execution, places: &Places) -> Result<NativeProfile, ProfileError> {
    let opened = Opened::of(execution, places)?;
    let hosts = execution.sandbox.hosts.clone();
    let (mut hidden, mut absent) = (Vec::new(), Vec::new());
    for (path, _, kind) in opened.hidden {
        match kind {
            Some(_) => hidden.push(path),
            None => absent.push(path),
        }
    }
    Ok(NativeProfile {
        read: opened.read.into_iter().map(|(path, _)| path).collect(),
        hidden,
        absent,
        data: opened.data,
        memory: execution.limits.memory,
        cpu_milli: execution.limits.cpu_milli,
        pids: execution.limits.pids,
        seccomp: Seccomp::of(&hosts),
        hosts,
    })
}
