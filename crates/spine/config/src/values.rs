//! The values of all keys, typed. Nothing here reads or decides.
//!
//! One field per key of [`crate::keys`], grouped as in the file. Where a value
//! came from is known by [`crate::Settings::origin`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use fluffy_base::{ByteSize, Span};

/// The value of every key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Values {
    /// What an agent task may use up.
    pub budget: Budget,
    /// Who may speak through channels.
    pub channels: Channels,
    /// The ledger.
    pub ledger: Ledger,
    /// Which model answers, as `provider/model`.
    pub model: Option<String>,
    /// What plugins can have.
    pub plugins: Plugins,
    /// Policy commands.
    pub policy: Policy,
    /// Model providers by name.
    pub providers: BTreeMap<String, Provider>,
    /// How tools are isolated.
    pub sandbox: Sandbox,
    /// How much is done at once.
    pub tasks: Tasks,
    /// The project's tests.
    pub tests: Tests,
    /// What people see.
    pub ui: Ui,
}

/// What an agent task may use up before it stops.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Budget {
    /// Money for model calls, in cents of a US dollar.
    pub cost_cents: u64,
    /// How deep subagents may start subagents.
    pub subagent_depth: u64,
    /// Tokens in and out.
    pub tokens: u64,
    /// Tool calls in one turn of the model.
    pub tool_calls: u64,
    /// Turns of the model.
    pub turns: u64,
    /// Time from start to end.
    pub wall_time: Span,
}

/// Who may speak through channels, each as `channel:identity`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Channels {
    /// Who may also answer questions.
    pub approvers: Vec<String>,
    /// Who may speak.
    pub senders: Vec<String>,
}

/// Where the ledger is and how much of it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ledger {
    /// The ledger's directory; none means the one in the state directory.
    pub path: Option<PathBuf>,
    /// Days kept before events may be archived away.
    pub retention_days: u64,
    /// Size kept before events may be archived away.
    pub retention_size: ByteSize,
    /// Files that get a copy of every checkpoint.
    pub witness: Vec<PathBuf>,
}

/// What plugins can have in a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plugins {
    /// Patterns of capabilities: the most that any of them can be granted.
    pub allow: Vec<String>,
}

/// Defaults of the policy commands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// How many recorded decisions a new policy is tried on.
    pub trial_last: u64,
}

/// One model provider.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Provider {
    /// Where the key is found; never the key itself.
    pub api_key: Option<KeySource>,
    /// The server, if not the vendor's.
    pub base_url: Option<String>,
    /// Which interface the server speaks.
    pub wire: Option<Wire>,
}

/// Where an API key is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// In an environment variable of this name.
    Env(String),
    /// In the system's keyring under this name.
    Keyring(String),
}

/// Which interface of a provider is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// The Chat Completions API, as most compatible servers speak it.
    Chat,
    /// The Responses API.
    Responses,
}

/// How much the sessions of a project do at once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tasks {
    /// After how long what waits becomes more urgent.
    pub age: Span,
    /// Turns of models.
    pub models: u64,
    /// Test runs.
    pub tests: u64,
    /// All together.
    pub total: u64,
}

/// How the project's tests are run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tests {
    /// Program and arguments; none means what is detected.
    pub command: Option<Vec<String>>,
    /// Programs and arguments of integration tests, by name.
    pub integration: BTreeMap<String, Vec<String>>,
    /// What measures which lines they reach.
    pub coverage: Coverage,
}

/// How the project's coverage is measured; needs both.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Coverage {
    /// Program and arguments.
    pub command: Option<Vec<String>>,
    /// Where the report is written, relative to the project.
    pub report: Option<String>,
}

/// How tools are isolated.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sandbox {
    /// What isolates on the process tier.
    pub engine: ProcessEngine,
}

/// What isolates on the process tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProcessEngine {
    /// Our own use of namespaces, Landlock and seccomp.
    #[default]
    Native,
    /// The same behind `bwrap`.
    Bwrap,
    /// Landlock and seccomp alone, where namespaces are forbidden.
    Reduced,
}

impl ProcessEngine {
    /// Every engine by its name.
    pub const ALL: [(&'static str, Self); 3] = [
        ("native", Self::Native),
        ("bwrap", Self::Bwrap),
        ("reduced", Self::Reduced),
    ];

    /// The engine of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find_map(|(known, engine)| (known == name).then_some(engine))
    }
}

/// What people see.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ui {
    /// When to use colour.
    pub color: ColorMode,
}

/// When to use colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ColorMode {
    /// In a terminal that wants it.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}
