//! What a person types: the whole command line, and nothing else.
//!
//! Only clap lives here. Each command turns its arguments into work in
//! `command/<noun>/<verb>.rs`.

mod agent;
mod channel;
pub(crate) mod platform;
mod plugin;
mod sandbox;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use fluffy_base::ByteSize;
use fluffy_base::id::SandboxId;
use fluffy_ledger::verify::Extent;

pub(crate) use agent::{
    Asked, ModeArg, ReplayArgs, RunTaskArgs, SessionCommand, TaskArgs, WorkArgs, with_task,
};
pub(crate) use channel::ChannelCommand;
pub(crate) use platform::{
    ContextCommand, ContextSetArgs, DiffArgs, ImageArgs, ImageCommand, ImagePackArgs,
    LedgerCommand, LogArgs, MachineRole, ManifestCommand, MigrateArgs, NetworkArgs, NodeAuditArgs,
    NodeCacheCommand, NodeCommand, NodeDoctorArgs, NodeEnrollArgs, NodeRunArgs, NodeVerifyArgs,
    RegistryArgs, ServerArgs, UpArgs,
};
pub(crate) use plugin::{PluginCommand, PluginLanguage};
pub(crate) use sandbox::{
    AftermathArgs, EngineArg, LayerCommand, RunArgs, SandboxCommand, SelftestArgs, TierArg,
};

/// Write, run and ship code nobody has to trust.
#[derive(Debug, Parser)]
#[command(
    name = "fluffy",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    max_term_width = 100,
    override_usage = "fluffy [OPTIONS] <COMMAND>\n       fluffy [OPTIONS] \"TASK\"\n       fluffy",
    after_help = "\
Start here:
  fluffy demo                                    watch an agent under rules, nothing to set up
  fluffy init                                    write a starter policy for this project
  fluffy \"add a test for parse_config\"           work on a task, test first; flags: run --help
  fluffy policy explain fs.write /src/lib.rs     ask what an agent may do, and why
  fluffy sandbox run -- make test                run a command that can harm nothing
  fluffy doctor                                  see how strongly this machine isolates
  fluffy audit verify                            prove that nobody touched the record

Exit codes are the same everywhere: 0 success, 1 a check did not hold, 2 usage or an
invalid file, 3 denied by policy, 4 not found, 5 conflict, 6 transient, 7 integrity
failure, 8 waiting for a person, 9 done but unverified, 10 a budget ran out."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What `demo` takes.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Play this recording instead of the demo's own
    #[arg(long, hide = true, value_name = "FILE")]
    pub(crate) recording: Option<PathBuf>,
}

/// Flags that every command takes.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Print stable JSON on standard output
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Say nothing but the result
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say more about what happens
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
    /// Act as if started in this folder
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Work on a task while nobody watches; exits by how it ended
    #[command(after_help = "\
With --json every event is a line of JSON on standard output; docs/agent-events.md lists them.
Exits 0 only when the task is done and verified: the kernel saw tests fail and then pass. 9 is done
but unverified, 8 waits for a person, 10 means that a budget ran out, 3 that policy denied it.

  fluffy run --json \"add error handling to parse_config\"")]
    Run(RunTaskArgs),
    /// Play a recorded session: the model's side from the file, the rest for real
    #[command(after_help = "\
Works on the recorded task in this project, as `fluffy \"task\"` would: policy, sandboxes, tests,
merge and commit are real, and only the model's answers come from the file. Needs no network and no
key. Where a tool answers differently from the recording the session ends with a diff and exit
code 5; otherwise it exits as the session did.

  fluffy run --record session.jsonl \"add error handling to parse_config\"
  fluffy replay session.jsonl")]
    Replay(ReplayArgs),
    /// Look at sessions of the agent; go on with one, or take it back
    #[command(subcommand)]
    Session(SessionCommand),
    /// Serve an editor through the Agent Client Protocol, over standard input and output
    Acp(WorkArgs),
    /// A task without a command in front of it
    #[command(name = "task", hide = true)]
    Task(TaskArgs),
    /// Watch a recorded model work on a real repository, under real rules
    #[command(after_help = "\
Needs no key, no network and no set-up, only git. Everything happens in a temporary folder that is
removed at the end. Where namespaces are forbidden it asks for reduced isolation, and says so. What
was merged is deployed on this machine and asked, where instances can run: as root, with perl. With
--json: the events of the session, then one line of type demo.ended. Exits 9 if the task did not
end verified.")]
    Demo(DemoArgs),
    /// Write a starter policy for this project and open its ledger
    #[command(after_help = "\
Writes `.fluffy/policy.yaml` and `.fluffy/config.toml` (never over an existing file), makes the
signing key and the ledger in your state directory, and prints the public key. Keep that key
somewhere else: `fluffy audit verify --key` checks against it.")]
    Init,
    /// Check, explain, test, try and apply policies
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Run commands in isolation, and test the isolation
    #[command(subcommand)]
    Sandbox(SandboxCommand),
    /// Look at what sandboxes wrote; merge it or drop it
    #[command(subcommand)]
    Layer(LayerCommand),
    /// Install plugins and look after them
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// Let people give work and hear of it through an installed channel
    #[command(subcommand)]
    Channel(ChannelCommand),
    /// Run the platform on this machine, for yourself
    #[command(after_help = "\
Needs no configuration: makes an org `local` with an env `dev`, and listens on a socket that only
you can use. Every command of the platform finds it by itself. Ends on Ctrl-C; what was answered is
kept.

  fluffy up
  fluffy apps create shop                        in another terminal")]
    Up(UpArgs),
    /// Run a server of the platform, for many
    #[command(after_help = "\
Any number of servers share one PostgreSQL. The first start prints a one-time code, with which
somebody becomes the owner of the installation: fluffy login --invite. Ends on SIGTERM and Ctrl-C,
and tells systemd when it is ready (Type=notify).

  FLUFFY_DATABASE=postgres://… fluffy server --name fluffy.example.com --keys /etc/fluffy/keys")]
    Server(Box<ServerArgs>),
    /// Run instances on this machine for a cluster
    #[command(subcommand)]
    Node(NodeCommand),
    /// Make an image without an engine or a builder
    #[command(subcommand)]
    Image(ImageCommand),
    /// Look after the platform's ledger where it is stored
    #[command(subcommand)]
    Ledger(LedgerCommand),
    /// Check and format `fluffy.toml`, which says what an app needs to run
    #[command(subcommand)]
    Manifest(ManifestCommand),
    /// Choose which server, org, app and env commands of the platform are about
    #[command(subcommand)]
    Context(ContextCommand),
    /// Say how strongly this machine can isolate, and how to get more
    #[command(after_help = "\
Everything is tried, not guessed. Exits 0 when the default tier works, else 1. With `--role node`
it says whether this machine can be a node, as `fluffy node doctor` does.")]
    Doctor {
        /// Say what this machine needs for a role instead
        #[arg(long, value_enum, value_name = "ROLE")]
        role: Option<MachineRole>,
    },
    /// Read the ledger, verify it, prove what it says
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Show the configuration and where each value comes from
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the version and what this build was made of
    Version,
    /// Print a completion script for your shell
    #[command(after_help = "\
For example: fluffy completions bash > ~/.local/share/bash-completion/completions/fluffy")]
    #[command(alias = "completion")]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    #[command(flatten)]
    Platform(platform::PlatformCommand),
    /// Tools for contributors
    #[command(subcommand, hide = true)]
    Dev(DevCommand),
    /// Does one thing with few rights; started by fluffy itself
    #[command(name = "worker", hide = true)]
    Worker {
        /// Which worker
        kind: String,
        /// What it is given
        #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Lint a policy file: errors with line and column, warnings for pointless rules
    #[command(after_help = "\
Without FILE: this project's `.fluffy/policy.yaml` with its extensions in `.fluffy/policy.d/`,
and whether they differ from the copy that is enforced. Exits 2 when a file is invalid.")]
    Check {
        /// The policy file
        file: Option<PathBuf>,
    },
    /// Say what would be decided, and name every rule that spoke
    #[command(after_help = "\
Nothing is recorded and nothing happens. For an agent, what you leave out is assumed to be what it
ordinarily is (a sandbox of template code-executor on tier process, mode strict, an empty write),
and the answer says so; --bare assumes nothing. Add --verbose to see the rules that kept silent.

  fluffy policy explain fs.write /src/lib.rs
  fluffy policy explain net.connect packages.example.com:443 --as builder --tag third_party
  fluffy policy explain fs.write /Cargo.toml --policy draft.yaml --json")]
    Explain {
        #[command(flatten)]
        request: Box<RequestArgs>,
        /// Assume nothing that was not given
        #[arg(long)]
        bare: bool,
    },
    /// Ask for a real decision: it is recorded, and the exit code is the answer
    #[command(after_help = "\
For scripts and hooks that want our policy to hold for them too. Exits 0 when allowed, 3 when
denied, 8 when a person has to review it.")]
    Decide {
        #[command(flatten)]
        request: Box<RequestArgs>,
    },
    /// Run a table of requests with expected decisions
    #[command(after_help = "\
Exits 0 when all hold, 1 when a decision differs, 2 when a file is invalid. The table's schema:
  fluffy policy schema test")]
    Test {
        /// The table (YAML)
        file: PathBuf,
    },
    /// Show which recorded decisions would change between two policies
    Diff {
        /// The policy before
        old: PathBuf,
        /// The policy after
        new: PathBuf,
        /// How many recorded decisions to try
        #[arg(long, value_name = "N", default_value_t = 1000)]
        last: usize,
    },
    /// Put a policy in force: reviewed, tried against history, pinned by hash
    #[command(after_help = "\
Shows what changes for the last recorded decisions, asks, and pins the reviewed copy in your
state directory. More than five decisions that turn from allow to deny need a typed phrase:
answer the prompt, or pass it with --confirm.")]
    Apply {
        /// The policy file; without it, this project's `.fluffy/policy.yaml`
        file: Option<PathBuf>,
        /// How many recorded decisions to try it against
        #[arg(long, value_name = "N")]
        last: Option<usize>,
        /// Answer yes to the review
        #[arg(long)]
        yes: bool,
        /// The phrase that a breaking change asks for
        #[arg(long, value_name = "PHRASE")]
        confirm: Option<String>,
    },
    /// Print the JSON schema of policy files or test tables
    Schema {
        /// Which file's schema
        #[arg(value_enum, default_value_t = SchemaKind::Policy)]
        of: SchemaKind,
    },
}

/// Which schema to print.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum SchemaKind {
    /// `.fluffy/policy.yaml`
    Policy,
    /// The table of `fluffy policy test`
    Test,
}

/// A request as it is typed.
#[derive(Debug, Args)]
pub(crate) struct RequestArgs {
    /// The action: `fs.write`, `net.connect`, …
    pub(crate) action: String,
    /// What it acts on: a path from the project's root, `host:port`, `org/app/env`
    pub(crate) resource: String,
    /// Who asks
    #[arg(long = "as", value_name = "NAME", default_value = "agent")]
    pub(crate) name: String,
    /// What kind of principal that is
    #[arg(long, value_enum, default_value_t = KindArg::Agent)]
    pub(crate) kind: KindArg,
    /// A trust label of the principal (repeat for more)
    #[arg(long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<String>,
    /// A capability pattern it holds (repeat for more; default `*`)
    #[arg(long = "grant", value_name = "PATTERN")]
    pub(crate) grants: Vec<String>,
    /// The sandbox it runs in (`sbx_…`)
    #[arg(long, value_name = "ID")]
    pub(crate) sandbox: Option<SandboxId>,
    /// The session's mode
    #[arg(long)]
    pub(crate) mode: Option<String>,
    /// The workflow's state
    #[arg(long)]
    pub(crate) state: Option<String>,
    /// The sandbox template it runs in
    #[arg(long)]
    pub(crate) template: Option<String>,
    /// The sandbox tier it runs on
    #[arg(long)]
    pub(crate) tier: Option<String>,
    /// The tenant it acts in
    #[arg(long)]
    pub(crate) tenant: Option<String>,
    /// How large the write is
    #[arg(long)]
    pub(crate) size: Option<ByteSize>,
    /// How many lines it changes
    #[arg(long)]
    pub(crate) lines: Option<u64>,
    /// Use this policy file instead of the one in force
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
}

/// The kinds of principal.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum KindArg {
    /// An agent session
    Agent,
    /// A person
    User,
    /// A plugin
    Plugin,
    /// A service token
    Service,
    /// A node
    Node,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// List events, newest last
    Log {
        #[command(flatten)]
        ledger: LedgerArg,
        /// How many of the newest events
        #[arg(long, value_name = "N", default_value_t = 20)]
        last: u64,
        /// Only events of this type (a final `*` stands for anything)
        #[arg(long = "type", value_name = "TYPE")]
        event_type: Option<String>,
        /// Only events from this position on; overrides --last
        #[arg(long, value_name = "SEQ")]
        from: Option<u64>,
    },
    /// Check every hash, number and signature; exits 7 and names the first bad event
    #[command(after_help = "\
Works on the live ledger, on a database file, and on an export, on any machine:
  fluffy audit verify
  fluffy audit verify --key ed25519:…                           pin the public key
  fluffy audit verify --against /mnt/other/witness.txt          catches a rewritten chain
  fluffy audit verify --ledger export.jsonl.zst
The export of an org verifies from its file alone, by the keys of all servers of its platform:
  fluffy audit verify --export acme.ndjson --key ed25519:… --key ed25519:…
Events that rest on another ledger's, such as a deploy of what an agent merged, are followed there:
  fluffy audit verify --ledger ~/.local/state/fluffy/up/ledger  into your own
  fluffy audit verify --ledger platform.jsonl --follow agent.jsonl")]
    Verify {
        #[command(flatten)]
        ledger: LedgerArg,
        #[command(flatten)]
        extent: ExtentArgs,
        /// Signed checkpoints kept elsewhere (repeat for more)
        #[arg(long, value_name = "FILE")]
        against: Vec<PathBuf>,
        /// The public key that `fluffy init` printed; with --export, the one that a server of the
        /// platform signs with, once for each server
        #[arg(long, value_name = "KEY")]
        key: Vec<String>,
        /// A ledger that this one may rest on (repeat for more); your own is known
        #[arg(long, value_name = "PATH")]
        follow: Vec<PathBuf>,
        /// The export of an org, instead of a ledger
        #[arg(long, value_name = "FILE")]
        #[arg(conflicts_with_all = ["ledger", "full", "quick", "against", "follow"])]
        export: Option<PathBuf>,
    },
    /// Write a proof that one event is in the ledger
    Prove {
        /// The event's position
        seq: u64,
        /// Where to write the proof; standard output without it
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Check a proof, on a machine that need not have the ledger
    CheckProof {
        /// The proof
        file: PathBuf,
        /// The public key that `fluffy init` printed
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
    },
    /// Write events as JSON Lines that `audit verify` accepts
    Export {
        #[command(flatten)]
        ledger: LedgerArg,
        /// Where to write; a name ending in `.zst` is compressed; standard output without it
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Follow the ledger as events arrive
    Tail {
        #[command(flatten)]
        ledger: LedgerArg,
        /// Start at this position instead of now
        #[arg(long, value_name = "SEQ")]
        from: Option<u64>,
        /// Stop after this many events
        #[arg(long, value_name = "N")]
        count: Option<u64>,
    },
}

/// How much of a ledger to verify.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct ExtentArgs {
    /// Everything that is at hand, archives included (the default)
    #[arg(long)]
    pub(crate) full: bool,
    /// Only what came after the newest checkpoint
    #[arg(long)]
    pub(crate) quick: bool,
}

impl From<ExtentArgs> for Extent {
    fn from(args: ExtentArgs) -> Self {
        if args.quick {
            Self::SinceCheckpoint
        } else {
            Self::Full
        }
    }
}

/// Which ledger.
#[derive(Debug, Args)]
pub(crate) struct LedgerArg {
    /// A ledger's folder, database or export instead of your own
    #[arg(long, value_name = "PATH")]
    pub(crate) ledger: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every key with its value
    Show {
        /// Also print where each value comes from
        #[arg(long)]
        origin: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum DevCommand {
    /// Write the generated parts of the documentation
    Generate {
        /// Write nothing; fail when a file is not up to date
        #[arg(long)]
        check: bool,
    },
}
