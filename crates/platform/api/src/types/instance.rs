//! Instances, commands run in them, and what they print.
//!
//! Data only; a token appears in the answer that makes it and nowhere else.
//! Next: `super::network`.

use std::collections::BTreeMap;
use std::fmt;

use fluffy_base::id::{
    AppId, AssignmentId, BootId, DeployId, EnvId, ExecSessionId, InstanceId, NodeId, OrgId,
    ReleaseId, SecretVersionId, VolumeId,
};
use fluffy_base::{Digest, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{Isolation, Meta};

/// One copy of a process type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Instance {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<InstanceId>,
    /// Whose.
    pub org_id: OrgId,
    /// Of which app.
    pub app_id: AppId,
    /// Where.
    pub env_id: EnvId,
    /// The process type.
    pub process: String,
    /// What it runs.
    pub release_id: ReleaseId,
    /// The deploy that brought it.
    pub deploy_id: Option<DeployId>,
    /// The hash of all its runtime inputs.
    pub spec_hash: Digest,
    /// The version of the secrets that it has.
    pub secret_version_id: Option<SecretVersionId>,
    /// What is wanted of it.
    pub desired: InstanceDesired,
    /// What is known of it.
    pub observed: InstanceObserved,
    /// The binding to its node.
    pub assignment: Assignment,
    /// What runs it, and what it shares.
    pub isolation: Isolation,
    /// Its address in the overlay.
    pub overlay_ipv6: String,
    /// What it has.
    pub resources: InstanceResources,
    /// The volumes that it mounts.
    pub mounts: Vec<InstanceMount>,
}

/// What is wanted of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstanceDesired {
    /// What.
    #[schemars(extend("enum" = ["running", "draining", "stopped"]))]
    pub state: String,
    /// Why.
    pub reason: Option<String>,
    /// Since when.
    pub since: Timestamp,
}

/// What is known of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstanceObserved {
    /// Where it stands.
    #[schemars(extend("enum" = [
        "allocated", "preparing", "booting", "ready", "unhealthy", "failed", "lost", "draining",
        "stopped", "collected"
    ]))]
    pub status: String,
    /// Since when.
    pub since: Timestamp,
    /// The start of its machine that this is about.
    pub boot_id: Option<BootId>,
    /// Why it is not well, as a stable word.
    pub reason_code: Option<String>,
    /// More, for people.
    pub reason_detail: Option<String>,
    /// How its command ended.
    pub exit_code: Option<i32>,
    /// How long its machine took to start.
    pub boot_ms: Option<u64>,
    /// How many times in a row it failed.
    pub failures: u32,
}

/// What binds an instance to its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Assignment {
    /// Which.
    pub id: AssignmentId,
    /// The node.
    pub node_id: NodeId,
    /// Counts assignments of the instance.
    pub generation: u64,
}

/// What an instance has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstanceResources {
    /// Thousandths of a processor.
    pub cpu_millis: u64,
    /// Bytes of memory for the guest.
    pub memory_bytes: u64,
    /// Bytes of scratch disk.
    pub disk_bytes: u64,
    /// Bytes that its driver needs beside the guest.
    pub overhead_bytes: u64,
}

/// A volume that an instance mounts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstanceMount {
    /// Which.
    pub volume_id: VolumeId,
    /// Where in the guest.
    pub mount_path: String,
    /// Whether it cannot be written.
    pub read_only: bool,
}

/// Asks for a signal to the workload of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalInstance {
    /// Which one; all processes of the workload's group get it.
    #[schemars(extend("enum" = ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2"]))]
    pub signal: String,
}

/// The signals that a workload can be sent.
pub const SIGNALS: [&str; 6] = ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2"];

/// All that is known of an instance. Each list has the newest entries only,
/// oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstanceDiagnosis {
    /// The instance itself.
    pub instance: Instance,
    /// How it got where it is.
    pub transitions: Vec<InstanceTransition>,
    /// What the first process of its guest said.
    pub init_log: Vec<LogLine>,
    /// What its node knows of it now; absent if the node does not tell.
    pub node: Option<NodeDiagnosis>,
    /// Why its node does not tell.
    pub node_problem: Option<String>,
}

/// One change of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstanceTransition {
    /// The number of its event.
    pub seq: u64,
    /// When.
    pub at: Timestamp,
    /// What happened, as the event is called.
    pub event: String,
    /// Where it stood then, or was wanted to.
    pub status: Option<String>,
    /// Which start of its machine it is about.
    pub boot_id: Option<String>,
    /// Why, as a stable word.
    pub reason: Option<String>,
    /// More, for people.
    pub detail: Option<String>,
    /// How its command ended.
    pub exit_code: Option<i64>,
}

/// What a node knows of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct NodeDiagnosis {
    /// What runs it.
    pub driver: String,
    /// The start of its machine.
    pub boot_id: String,
    /// Where the node says it stands: `nothing`, `starting`, `up`, `ended`.
    pub run: String,
    /// How far its guest says it is; absent if it does not answer.
    pub phase: Option<String>,
    /// Its workload's process, as the guest counts.
    pub workload_pid: Option<u32>,
    /// Since when its workload runs.
    pub workload_since: Option<Timestamp>,
    /// Whether it is well; absent where nobody asks, or has yet.
    pub healthy: Option<bool>,
    /// Commands that run beside the workload.
    pub exec_sessions: u32,
    /// What it uses; absent if nothing runs.
    pub uses: Option<InstanceUse>,
    /// How it failed last.
    pub last_failure: Option<InstanceFailure>,
    /// How many failures in a row.
    pub failures: u32,
    /// Whether it is in a crash loop.
    pub crash_loop: bool,
    /// The last lines of its console.
    pub console: Vec<String>,
}

/// What an instance uses, beside what it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct InstanceUse {
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The most bytes of memory ever; zero if nobody knows.
    pub memory_peak_bytes: u64,
    /// Microseconds of processor time ever.
    pub cpu_usec: u64,
    /// Processes.
    pub processes: u64,
    /// How many of its processes were ended for their memory, ever.
    pub oom_kills: u64,
    /// The most memory that it may use.
    pub memory_limit_bytes: u64,
    /// The most processes that it may have.
    pub process_limit: u64,
}

/// How an instance failed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct InstanceFailure {
    /// When, if that is known.
    pub at: Option<Timestamp>,
    /// Why, as a stable word.
    pub reason: String,
    /// More, for people.
    pub detail: String,
    /// What its workload ended with.
    pub exit_code: Option<i32>,
}

/// Asks to run a command in an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateExec {
    /// The program and its arguments.
    #[schemars(length(min = 1, max = 64))]
    pub command: Vec<String>,
    /// Whether it gets a terminal.
    #[serde(default)]
    pub tty: bool,
    /// The width of the terminal.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1000))]
    pub cols: Option<u16>,
    /// The height of the terminal.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1000))]
    pub rows: Option<u16>,
    /// More variables; their values are not recorded.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 64))]
    pub env: BTreeMap<String, String>,
    /// Whether something will be written to it.
    #[serde(default)]
    pub stdin: bool,
    /// Whether it runs as the root of the instance and not as the user of its
    /// workload, which needs `instance.exec_root` too.
    #[serde(default)]
    pub as_root: bool,
    /// Whether its client may come back within 30 seconds after its connection
    /// broke; only with a terminal.
    #[serde(default)]
    pub resume: bool,
    /// How long it may last, in seconds; an hour if absent.
    #[serde(default)]
    #[schemars(range(min = 60, max = 86400))]
    pub max_seconds: Option<u32>,
    /// How long the token is good, in seconds; a minute if absent.
    #[serde(default)]
    #[schemars(range(min = 30, max = 300))]
    pub token_seconds: Option<u32>,
    /// Why.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub reason: Option<String>,
}

/// The answer to a command that may run: how to connect, shown once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecGranted {
    /// The session.
    pub id: ExecSessionId,
    /// Where to open the WebSocket.
    pub connect_url: String,
    /// What opens it, once; absent in a replayed answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Until when.
    pub expires_at: Timestamp,
}

impl fmt::Debug for ExecGranted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecGranted")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// A command run in an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecSession {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<ExecSessionId>,
    /// Whose.
    pub org_id: OrgId,
    /// Of which app.
    pub app_id: AppId,
    /// Where.
    pub env_id: EnvId,
    /// In which instance.
    pub instance_id: InstanceId,
    /// Where it stands.
    #[schemars(extend("enum" = ["requested", "denied", "granted", "connected", "ended"]))]
    pub status: String,
    /// The program and its arguments, values of variables left out.
    pub command: Vec<String>,
    /// Whether it has a terminal.
    pub tty: bool,
    /// Whether it runs as the root of the instance.
    #[serde(default)]
    pub as_root: bool,
    /// Whether its client may come back when its connection broke.
    #[serde(default)]
    pub resume: bool,
    /// Why, as its owner said.
    pub reason: Option<String>,
    /// Who asked for it.
    pub principal_id: String,
    /// Until when somebody may connect.
    pub expires_at: Option<Timestamp>,
    /// How it ended.
    pub end_reason: Option<String>,
    /// How the command ended.
    pub exit_code: Option<i32>,
    /// Bytes from the client.
    pub bytes_in: Option<u64>,
    /// Bytes to the client.
    pub bytes_out: Option<u64>,
}

/// Lines that instances printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Logs {
    /// The lines, oldest first.
    pub items: Vec<LogLine>,
    /// Behind the last of them, if a `cursor` was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// One line that an instance printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    /// When.
    pub at: Timestamp,
    /// Which instance.
    pub instance_id: InstanceId,
    /// Its process type.
    pub process: String,
    /// Where it was printed.
    #[schemars(extend("enum" = ["stdout", "stderr", "platform"]))]
    pub stream: String,
    /// What.
    pub line: String,
    /// Whether the rest of a long line was cut off.
    pub truncated: bool,
    /// The boot that printed it, if the server knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Its number in that stream of that boot, if the server knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// How many lines were lost just before it; absent if none were.
    #[serde(default, skip_serializing_if = "is_none_lost")]
    pub dropped: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_none_lost(dropped: &u64) -> bool {
    *dropped == 0
}
