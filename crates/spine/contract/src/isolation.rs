//! Isolation: one interface from a WASM call to a microVM.
//!
//! A specification names a template, which names the least tier it accepts; an
//! engine never runs it on a weaker one, and says which level it really gives.
//! Next: `fluffy_sandbox` implements this for processes and containers.

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

/// What a sandbox is made from; nothing changes after creation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxSpec {
    /// The named set of limits.
    pub template: String,
    /// A stronger tier than the template asks for; a weaker one is refused.
    #[serde(default)]
    pub tier: Option<Tier>,
    /// The project, seen inside at its own path.
    #[serde(default)]
    pub project: Option<PathBuf>,
    /// Where writes to the project land; without one it is read-only.
    #[serde(default)]
    pub layer: Option<LayerMount>,
    /// The only paths of the project that may be written; empty means all.
    #[serde(default)]
    pub writable: Vec<PathBuf>,
    /// Paths of the project that stay read-only, whatever else is said.
    #[serde(default)]
    pub protected: Vec<PathBuf>,
    /// Paths of the project that stay unread and unwritten: a file cannot be
    /// opened, a directory not be listed, whatever else is said.
    #[serde(default)]
    pub hidden: Vec<PathBuf>,
    /// More paths to see, read-only.
    #[serde(default)]
    pub read: Vec<PathBuf>,
    /// What its processes find in their environment besides the basics.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The image of a container; without one it is made from the host.
    #[serde(default)]
    pub image: Option<String>,
    /// A shorter life than the template's.
    #[serde(default)]
    pub time: Option<Span>,
    /// The folders of a plugin, seen at their own paths.
    #[serde(default)]
    pub plugin: Option<PluginMount>,
    /// Less than the template's limits; more is refused.
    #[serde(default)]
    pub limits: SmallerLimits,
}

/// The folders of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PluginMount {
    /// What was installed, read-only.
    pub files: PathBuf,
    /// What it may write and keep.
    #[serde(default)]
    pub data: Option<PathBuf>,
    /// Where its sockets are met from outside; empty when it starts.
    #[serde(default)]
    pub meeting: Option<PathBuf>,
}

/// Limits below a template's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SmallerLimits {
    /// Memory of all processes together.
    #[serde(default)]
    pub memory: Option<ByteSize>,
    /// Thousandths of a processor.
    #[serde(default)]
    pub cpu_milli: Option<u32>,
    /// Processes and threads at once.
    #[serde(default)]
    pub pids: Option<u32>,
}

/// Where the writes of a sandbox go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LayerMount {
    /// An overlay over the project.
    Overlay {
        /// What was written.
        upper: PathBuf,
        /// Scratch space of the kernel, on the same file system.
        work: PathBuf,
    },
    /// A whole copy of the project.
    Tree {
        /// The copy.
        tree: PathBuf,
    },
}

/// A command: an array of arguments, never a line for a shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Variables for this command alone.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Where it starts; the project's root if not said.
    #[serde(default)]
    pub directory: Option<PathBuf>,
    /// A terminal in place of three streams.
    #[serde(default)]
    pub terminal: Option<TerminalSize>,
    /// How much output is passed on before the command is ended.
    #[serde(default)]
    pub output: Option<ByteSize>,
    /// How long it may run; never longer than the template says.
    #[serde(default)]
    pub time: Option<Span>,
}

impl Command {
    /// A command with nothing but its arguments.
    #[must_use]
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            environment: BTreeMap::new(),
            directory: None,
            terminal: None,
            output: None,
            time: None,
        }
    }
}

/// The size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Characters in a line.
    pub columns: u16,
    /// Lines.
    pub rows: u16,
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
    /// It could not be started.
    NotStarted {
        /// The system's error number: not found, not executable, …
        errno: i32,
    },
}

/// Which limit ended a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// It wrote more files than it may, or the host's disk ran full.
    Disk,
}

/// One piece of what a command wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// To standard output, or to its terminal.
    Stdout(Vec<u8>),
    /// To standard error.
    Stderr(Vec<u8>),
}

/// What a sandbox uses now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Memory of all its processes, in bytes.
    pub memory: u64,
    /// The most it ever was, where the system counts that.
    pub memory_peak: Option<u64>,
    /// Processor time of all its processes, in microseconds.
    pub cpu_micros: u64,
    /// Processes and threads.
    pub pids: u32,
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
    /// The specification asks for what no sandbox may have.
    #[error("{what} is refused: {reason}")]
    Refused {
        /// What was asked for.
        what: String,
        /// Why not; says how to fix it.
        reason: String,
    },
    /// What it needs is still being fetched; ask again.
    #[error("not ready yet: {progress}")]
    Pending {
        /// How far it is.
        progress: String,
    },
    /// The sandbox is gone: it was ended, or a limit ended it.
    #[error("sandbox `{sandbox}` has ended")]
    Ended {
        /// Which sandbox.
        sandbox: SandboxId,
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

    /// Starts a command; never through a shell.
    fn exec(
        &self,
        permit: Permit,
        command: Command,
    ) -> BoxFuture<'_, Result<Box<dyn Child>, SandboxError>>;

    /// Stops its processes where they are.
    fn pause(&self) -> BoxFuture<'_, Result<(), SandboxError>>;

    /// Lets paused processes go on.
    fn resume(&self) -> BoxFuture<'_, Result<(), SandboxError>>;

    /// What it uses now.
    fn stats(&self) -> BoxFuture<'_, Result<Stats, SandboxError>>;

    /// Asks its processes to end, and ends them when the grace is over.
    fn stop(&self, grace: Duration) -> BoxFuture<'_, Result<(), SandboxError>>;

    /// Ends all its processes at once.
    fn kill(&self) -> BoxFuture<'_, Result<(), SandboxError>>;

    /// Ends everything in it and removes what it left; may be called again.
    fn cleanup(&self) -> BoxFuture<'_, Result<(), SandboxError>>;
}

/// One running command. Dropping it ends the command.
pub trait Child: Send {
    /// The next piece of output; nothing when both streams have ended. The
    /// command waits while nobody asks.
    fn output(&mut self) -> BoxFuture<'_, Result<Option<Output>, SandboxError>>;

    /// Writes to its standard input or terminal.
    fn write<'a>(&'a mut self, bytes: &'a [u8]) -> BoxFuture<'a, Result<(), SandboxError>>;

    /// Ends its standard input.
    fn close_input(&mut self) -> BoxFuture<'_, Result<(), SandboxError>>;

    /// Tells it that its terminal has another size.
    fn resize(&mut self, size: TerminalSize) -> BoxFuture<'_, Result<(), SandboxError>>;

    /// Sends it a signal, by number.
    fn signal(&mut self, signal: i32) -> BoxFuture<'_, Result<(), SandboxError>>;

    /// How it ended, once it has.
    fn wait(&mut self) -> BoxFuture<'_, Result<Exit, SandboxError>>;
}
