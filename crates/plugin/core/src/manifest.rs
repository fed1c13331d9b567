//! `plugin.yaml`: what a plugin says about itself, typed and checked.
//!
//! A manifest is read whole or refused, with the place of everything that is
//! wrong in it. It declares and never grants: what it lists is the most that
//! a plugin can be given. Next: `document` reads the file, `reach` the paths
//! and hosts, `schema` is for editors.

mod capabilities;
pub(crate) mod document;
mod execution;
mod options;
pub mod reach;
pub mod schema;
pub mod settings;

use std::collections::BTreeMap;

use fluffy_base::{ByteSize, Span};
use fluffy_contract::isolation::Tier;
use fluffy_policy::capability::Pattern;
use fluffy_policy::diagnostic::{Diagnostic, RefusedText};
use fluffy_policy::host::HostPattern;
use semver::{Version, VersionReq};
use serde_json::Value;

pub use reach::PathRule;
pub use settings::Settings;

/// What the file is called.
pub const FILE: &str = "plugin.yaml";

/// The versions of the contract that this host speaks.
pub const APIS: &[u32] = &[1];

/// What one plugin declares.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Its name: `[a-z][a-z0-9-]{1,63}`.
    pub name: String,
    /// Its version.
    pub version: Version,
    /// What it is.
    pub kind: Kind,
    /// The versions of fluffy that it works with.
    pub engine: VersionReq,
    /// The version of the contract that it speaks.
    pub api: u32,
    /// Its licence, as its author calls it.
    pub license: Option<String>,
    /// The most that it can be granted.
    pub capabilities: Vec<Pattern>,
    /// What it never gets, whoever grants it.
    pub deny_capabilities: Vec<Pattern>,
    /// Labels; none of them means trust.
    pub tags: Vec<String>,
    /// How it runs; a skill that is only text has nothing to run.
    pub execution: Option<Execution>,
    /// The settings that it takes.
    pub settings: Settings,
    /// Other plugins that must run before it.
    pub dependencies: BTreeMap<String, VersionReq>,
    /// How it starts over and ends.
    pub lifecycle: LifecycleWishes,
    /// The tools that it is known to have without being asked.
    pub tools: Vec<ToolDeclaration>,
    /// What is legal and pointless.
    pub warnings: Vec<Diagnostic>,
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// Everything that is wrong with the text, each at its line and column.
    pub fn parse(text: &str) -> Result<Self, RefusedText> {
        document::read(text, document::Comes::FromOutside)
    }

    /// Reads the manifest of tools that come with the product: the same in all
    /// but that there is nothing to start.
    ///
    /// # Errors
    /// As [`Self::parse`], or it has an `execution`.
    pub fn parse_built_in(text: &str) -> Result<Self, RefusedText> {
        document::read(text, document::Comes::WithTheProduct)
    }

    /// Whether this host, of this version, can run it.
    ///
    /// # Errors
    /// What does not fit.
    pub fn fits(&self, running: &Version) -> Result<(), Misfit> {
        if !APIS.contains(&self.api) {
            return Err(Misfit::Api { wanted: self.api });
        }
        match self.engine.matches(running) {
            true => Ok(()),
            false => Err(Misfit::Engine {
                wanted: self.engine.clone(),
                running: running.clone(),
            }),
        }
    }
}

/// Why a manifest that is valid is not for this host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// It was made for other versions.
    #[error("it works with fluffy `{wanted}`, and this is {running}")]
    Engine {
        /// Which it wants.
        wanted: VersionReq,
        /// Which this is.
        running: Version,
    },
    /// It speaks another contract.
    #[error("it speaks version {wanted} of the plugin contract, and this host speaks {APIS:?}")]
    Api {
        /// Which it speaks.
        wanted: u32,
    },
}

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$each:meta])* $variant:ident = $word:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        pub enum $name {
            $($(#[$each])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// The word as it is written.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl std::str::FromStr for $name {
            type Err = fluffy_policy::word::UnknownWord;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($word => Ok(Self::$variant),)*
                    _ => Err(fluffy_policy::word::UnknownWord {
                        text: text.chars().take(64).collect(),
                        what: $what,
                        words: &[$($word),*],
                    }),
                }
            }
        }
    )*};
}

words! {
    /// What a plugin is.
    Kind, "type of plugin" {
        /// Speaks to models.
        Provider = "provider",
        /// Carries messages in and out.
        Channel = "channel",
        /// Has tools for the model.
        Tool = "tool",
        /// Teaches the model something.
        Skill = "skill",
    }

    /// What is spoken with a plugin's process.
    Protocol, "protocol" {
        /// HashiCorp's go-plugin over gRPC.
        GoPlugin = "go-plugin",
        /// The Model Context Protocol over standard streams.
        Mcp = "mcp",
    }

    /// What a call of a tool does.
    Effect, "kind of effect" {
        /// It looks and changes nothing.
        Reads = "reads",
        /// It changes something somewhere.
        Acts = "acts",
    }
}

/// How a plugin runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    /// The weakest tier that its author wants for it.
    pub tier: Tier,
    /// What is started.
    pub start: Start,
    /// Variables of the program, each with the setting whose value it has.
    pub environment: BTreeMap<String, String>,
    /// What it sees and reaches.
    pub sandbox: Reach,
    /// The most that it uses.
    pub limits: Limits,
}

/// What is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// A module for the WASM engine.
    Module {
        /// Its file, below the plugin's own directory.
        file: String,
    },
    /// A program.
    Program {
        /// The program and its arguments.
        command: Vec<String>,
        /// What is spoken with it.
        protocol: Protocol,
    },
    /// A program inside an image.
    Image {
        /// The image's reference.
        image: String,
        /// The program and its arguments.
        command: Vec<String>,
        /// What is spoken with it.
        protocol: Protocol,
    },
}

impl Start {
    /// The tiers that this can run in, weakest first.
    ///
    /// A module's engine is a worker in a process sandbox anyway; in that tier
    /// it has one of its own.
    #[must_use]
    pub const fn tiers(&self) -> &'static [Tier] {
        match self {
            Self::Module { .. } => &[Tier::Wasm, Tier::Process],
            Self::Program { .. } => &[Tier::Process, Tier::Container],
            Self::Image { .. } => &[Tier::Container, Tier::Microvm],
        }
    }
}

/// What a plugin sees and reaches; empty means nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    /// What it may read.
    pub read_allow: Vec<PathRule>,
    /// What of it stays unread.
    pub read_deny: Vec<PathRule>,
    /// What it may write.
    pub write_allow: Vec<PathRule>,
    /// Hosts that it may connect to, each with its port.
    pub hosts: Vec<HostPattern>,
}

/// The most that a plugin uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory of all its processes.
    pub memory: ByteSize,
    /// Thousandths of a processor.
    pub cpu_milli: u32,
    /// Processes and threads.
    pub pids: u32,
    /// What one call of a module may burn; the host's default if not said.
    pub fuel: Option<u64>,
    /// How long one call may take.
    pub call_timeout: Span,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: ByteSize(256 << 20),
            cpu_milli: 500,
            pids: 64,
            fuel: None,
            call_timeout: Span { millis: 30_000 },
        }
    }
}

/// How a plugin starts over and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LifecycleWishes {
    /// Whether a new instance may start beside the old one.
    pub hot_reload: bool,
    /// How long calls may take to finish before it is ended.
    pub graceful_shutdown_timeout: Span,
}

impl Default for LifecycleWishes {
    fn default() -> Self {
        Self {
            hot_reload: true,
            graceful_shutdown_timeout: Span { millis: 30_000 },
        }
    }
}

/// A tool that the manifest declares.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDeclaration {
    /// Its name, which is the end of its action `plugin.<plugin>.<tool>`.
    pub name: String,
    /// One line about it.
    pub summary: String,
    /// JSON Schema of its arguments.
    pub parameters: Value,
    /// What a call does.
    pub effect: Effect,
    /// A shorter time than the plugin's for one call.
    pub timeout: Option<Span>,
}
