//! What a person types to run things in isolation: `sandbox`, `layer`.
//!
//! Only clap lives here; the work is in `command/sandbox` and `command/layer`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use fluffy_base::{ByteSize, Span};

#[derive(Debug, Subcommand)]
pub(crate) enum SandboxCommand {
    /// Run a command in a sandbox; its writes go to a layer, not to the project
    #[command(after_help = "\
The command sees this project at its own path, the system's programs, and nothing else: no home,
no network but its own loopback, no secrets from the environment. What it writes to the project
goes to a layer that you look at, merge or drop. The three streams are the command's own.

  fluffy sandbox run -- cargo test
  fluffy sandbox run --merge -- cargo fmt
  fluffy sandbox run --allow index.crates.io:443 --allow static.crates.io:443 -- cargo fetch
  fluffy sandbox run --discard -- sh -c 'rm -rf .'

Exits with the command's own code; 124 when its time was over, 125 when there was no sandbox or
policy refused it, 126 and 127 as a shell would, 128 and the signal's number when a signal or
another limit ended it. A merge that was asked for and did not happen: 3 refused, 5 conflict,
8 somebody has to look. With --json the last line of standard error says all of it.")]
    Run(Box<RunArgs>),
    /// Try the corpus of escapes on this machine and say what it does not stop
    #[command(after_help = "\
Every attack runs inside a sandbox of its own, with canaries outside that say whether it got out.
Exits 1 when one escaped. It takes a few minutes; nothing of yours is touched.")]
    Selftest(SelftestArgs),
}

/// What `sandbox run` takes.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// How strongly to isolate; at least `process`, and what the template asks for
    #[arg(long, value_enum)]
    pub(crate) tier: Option<TierArg>,
    /// The named set of limits; `code-executor`, or `integration-test` with --allow
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,
    /// A host it may reach, besides what policy allows (repeat for more)
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) allow: Vec<String>,
    /// The only path of the project it may write to (repeat for more)
    #[arg(long, value_name = "PATH")]
    pub(crate) write: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) aftermath: AftermathArgs,
    /// Who makes the namespaces of the process tier
    #[arg(long, value_enum)]
    pub(crate) engine: Option<EngineArg>,
    /// Answer yes to what policy wants a person to look at
    #[arg(long)]
    pub(crate) yes: bool,
    /// Less time than the template gives, such as `30s`
    #[arg(long, value_name = "SPAN")]
    pub(crate) time: Option<Span>,
    /// How much it may print before it is ended, such as `10MiB`
    #[arg(long, value_name = "SIZE")]
    pub(crate) output: Option<ByteSize>,
    /// The image of tier container; without it, this machine's own programs
    #[arg(long, value_name = "NAME")]
    pub(crate) image: Option<String>,
    /// Small limits, and this program inside: how `sandbox selftest` runs attacks
    #[arg(long, hide = true)]
    pub(crate) trial: bool,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

/// What happens to the layer afterwards.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct AftermathArgs {
    /// Merge what it wrote into the project, if it succeeds
    #[arg(long)]
    pub(crate) merge: bool,
    /// Drop what it wrote
    #[arg(long)]
    pub(crate) discard: bool,
    /// Keep what it wrote in its layer (the default)
    #[arg(long)]
    pub(crate) keep: bool,
}

/// The tiers of isolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TierArg {
    /// A WebAssembly module; nothing but what it is given
    Wasm,
    /// Namespaces, seccomp, Landlock and limits
    Process,
    /// A container of Docker or Podman
    Container,
    /// A virtual machine
    Microvm,
}

/// Who makes the namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineArg {
    /// fluffy itself
    Native,
    /// bubblewrap, where only it may
    Bwrap,
    /// Nobody: reduced isolation, for machines that forbid namespaces
    Reduced,
}

/// What `sandbox selftest` takes.
#[derive(Debug, Args)]
pub(crate) struct SelftestArgs {
    /// Only this tier; every tier that works here without it
    #[arg(long, value_enum)]
    pub(crate) tier: Option<TierArg>,
    /// Who makes the namespaces of the process tier
    #[arg(long, value_enum)]
    pub(crate) engine: Option<EngineArg>,
    /// Only attacks whose name or family is this (repeat for more)
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// Also try bare bubblewrap and `docker run`, those that are here
    #[arg(long)]
    pub(crate) compare: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LayerCommand {
    /// List layers, newest first
    List {
        /// Also those of other projects, and merged ones
        #[arg(long)]
        all: bool,
    },
    /// Show what a layer would change, as a unified diff
    Diff {
        /// The layer; the beginning of its id is enough
        id: String,
    },
    /// Merge a layer into its project, or end a merge that was interrupted
    #[command(after_help = "\
What is never merged (hooks of git, links that leave the project, devices, setuid files …) and what
conflicts with changes in the project is shown, and nothing is merged then. Policy is asked for
every path; what it wants looked at is shown as a diff, and you are asked, or pass --yes.")]
    Merge {
        /// The layer; the beginning of its id is enough
        id: String,
        /// Answer yes after looking at the diff
        #[arg(long)]
        yes: bool,
        /// A path that stays in the layer (repeat for more)
        #[arg(long, value_name = "PATH")]
        without: Vec<String>,
    },
    /// Remove a layer and all that is in it
    Drop {
        /// The layer; the beginning of its id is enough
        id: String,
        /// Answer yes to what policy wants a person to look at
        #[arg(long)]
        yes: bool,
    },
}
