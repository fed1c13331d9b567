//! Isolation: one interface from a WASM call to a microVM.
//!
//! A specification names the least tier it accepts; an engine never runs it
//! on a weaker one, and says which level it really gives.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use fluffy_base::id::SandboxId;
use fluffy_base::{ByteSize, Span};
use fluffy_policy::Permit;
pub use fluffy_policy::word::Tier;
use serde::{Deserialize, Serialize};

use crate::BoxFuture;

/// What really stands between the sandbox and the host; shown everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Hardware virtualization.
    Microvm,
    /// A virtual machine without hardware help.
    MicrovmEmulated,
    /// Namespaces, seccomp and Landlock on the host's kernel.
    SharedKernel,
    /// No namespaces to be had; only where it was asked for.
    Reduced,
}

/// What a sandbox may use; nothing changes after creation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// The named set of limits.
    pub template: String,
    /// The weakest tier that will do.
    pub least_tier: Tier,
    /// Memory for the whole tree of processes.
    pub memory: ByteSize,
    /// Processes and threads at once.
    pub pids: u32,
    /// How long it may live; nothing means as long as its owner.
    pub time: Option<Span>,
    /// Paths it may read.
    pub read: Vec<PathBuf>,
    /// Paths it may write.
    pub write: Vec<PathBuf>,
    /// The whole environment of its processes.
    pub environment: BTreeMap<String, String>,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Exit {
    /// It returned this code.
    Code {
        /// The code.
        code: i32,
    },
    /// A signal ended it.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// A limit ended it.
    Limit {
        /// Which.
        limit: Limit,
    },
}

/// Which limit ended a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Its time was over.
    Time,
    /// It used more memory than it had.
    Memory,
    /// It started more processes than it may.
    Pids,
    /// It wrote more output than is kept.
    Output,
}

/// What a finished command left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// How it ended.
    pub exit: Exit,
    /// What it wrote to standard output, up to the limit.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error, up to the limit.
    pub stderr: Vec<u8>,
    /// How long it took.
    pub took: Duration,
}

/// Why a sandbox could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// This machine cannot isolate as strongly as the specification wants.
    #[error("tier `{wanted}` is not to be had here: {reason}")]
    TierUnavailable {
        /// What was wanted.
        wanted: Tier,
        /// Why not; says how to fix it.
        reason: String,
    },
    /// The engine failed.
    #[error("sandbox `{sandbox}` failed while it was asked to {operation}")]
    Engine {
        /// Which sandbox.
        sandbox: SandboxId,
        /// What was being done.
        operation: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// One engine that makes sandboxes.
pub trait Isolation: Send + Sync {
    /// The tier it gives.
    fn tier(&self) -> Tier;

    /// What that means on this machine.
    fn level(&self) -> Level;

    /// Makes a sandbox; the permit is for `sandbox.create`.
    fn create(
        &self,
        permit: Permit,
        spec: SandboxSpec,
    ) -> BoxFuture<'_, Result<Box<dyn Sandbox>, SandboxError>>;
}

/// One isolated run.
pub trait Sandbox: Send + Sync {
    /// Its id.
    fn id(&self) -> SandboxId;

    /// Runs a command to its end; never through a shell.
    fn exec(
        &self,
        permit: Permit,
        command: Vec<String>,
    ) -> BoxFuture<'_, Result<Finished, SandboxError>>;

    /// Ends everything in it and removes what it left; may be called again.
    fn cleanup(&self) -> BoxFuture<'_, Result<(), SandboxError>>;
}
