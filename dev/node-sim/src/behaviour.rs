//! How a simulated node behaves: how long things take, and what goes wrong.
//!
//! Plain data, set by flags and by the control socket; `machine` and `node`
//! act by it.

use serde::{Deserialize, Serialize};

/// How a node behaves. The default is a quick node without faults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Behaviour {
    /// How long image and disks take.
    pub prepare_ms: u64,
    /// How long a boot takes until it is ready.
    pub boot_ms: u64,
    /// How long a workload takes to end.
    pub stop_ms: u64,
    /// How long something is left of what has stopped.
    pub collect_ms: u64,
    /// How long a failed instance waits before its next boot.
    pub restart_ms: u64,
    /// How long it takes to open the stream of a command.
    pub attach_ms: u64,
    /// The reason for which every start fails; image reasons while preparing.
    pub fail: Option<String>,
    /// The only process type that fails; all if nothing is said.
    pub fail_process: Option<String>,
    /// Whether health checks fail.
    pub unhealthy: bool,
    /// Whether every message with reports is sent twice.
    pub twice: bool,
    /// Whether reports are sent the last first.
    pub reorder: bool,
    /// Whether it says nothing: no heartbeat, no report.
    pub silent: bool,
    /// Whether it has no connection.
    pub offline: bool,
    /// How full its disk is, in thousandths.
    pub disk_used_permille: u32,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            prepare_ms: 20,
            boot_ms: 20,
            stop_ms: 20,
            collect_ms: 0,
            restart_ms: 200,
            attach_ms: 0,
            fail: None,
            fail_process: None,
            unhealthy: false,
            twice: false,
            reorder: false,
            silent: false,
            offline: false,
            disk_used_permille: 100,
        }
    }
}

impl Behaviour {
    /// The reason for which an instance of this process fails, if it does.
    #[must_use]
    pub fn failure_of(&self, process: &str) -> Option<&str> {
        let concerned = self
            .fail_process
            .as_ref()
            .is_none_or(|only| only == process);
        self.fail.as_deref().filter(|_| concerned)
    }
}
