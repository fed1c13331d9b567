//! What a person types about the platform.
//!
//! Only clap lives here; the work is in `command/platform`.

mod custody;
mod fields;
mod tree;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::ArgValueCompleter;
use fluffy_base::Span;
use fluffy_image::Mirror;

pub(crate) use custody::{
    IdentityArgs, InitKeysArgs, RecoverKeysArgs, ServerCommand, UnsealArgs, VerifySharesArgs,
};
pub(crate) use fields::{Field, FieldKind, fields, kind};
pub(crate) use tree::{PlatformCommand, Waits, body_id, derived, own_params, waits};

use crate::command::platform::complete;

#[derive(Debug, Subcommand)]
pub(crate) enum ManifestCommand {
    /// Check a manifest: every problem with its code, line and column
    #[command(after_help = "\
Without FILE: the nearest `fluffy.toml`, from this folder upwards. Exits 2 when it is invalid. The
server checks by the same rules.")]
    Validate {
        /// The manifest
        file: Option<PathBuf>,
    },
    /// Write a manifest in its one form; comments and values stay as they are
    Fmt {
        /// The manifest; without it, the nearest `fluffy.toml`
        file: Option<PathBuf>,
        /// Write nothing; exit 1 when it would change
        #[arg(long)]
        check: bool,
    },
    /// Print the JSON Schema of `fluffy.toml`, for editors
    Schema,
    /// Show what two manifests say differently, defaults applied
    #[command(after_help = "\
  fluffy manifest diff old.toml                  compares with the nearest `fluffy.toml`
  fluffy manifest diff old.toml new.toml
  fluffy manifest diff --release rel_01…         what a deploy of the nearest one would change")]
    Diff(DiffArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Pack a folder as an image in the OCI layout; the same files give the same bytes
    #[command(after_help = "\
The folder is the image's root: what runs has to be in it with all that it needs. Files belong to
root and keep of their permissions only whether they can be run.

  fluffy image pack root image -- /bin/server --port 8080
  fluffy launch --image oci:image --port 8080")]
    Pack(ImagePackArgs),
}

/// What `image pack` takes.
#[derive(Debug, Args)]
pub(crate) struct ImagePackArgs {
    /// The folder that becomes the image's root
    pub(crate) root: PathBuf,
    /// Where the image is written; must not be there yet
    pub(crate) image: PathBuf,
    /// A variable of what runs (repeat for more)
    #[arg(long = "variable", value_name = "NAME=VALUE")]
    pub(crate) variables: Vec<String>,
    /// As whom it runs, such as `1000:1000` [default: root of the instance]
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// The folder in which it runs [default: /]
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// What runs, unless a manifest says otherwise
    #[arg(last = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LedgerCommand {
    /// Copy the platform from files into PostgreSQL; the head's hash must come out equal
    #[command(after_help = "\
Nobody may serve the platform meanwhile: end `fluffy up` first. The files stay as they are, and an
interrupted copy goes on when it is done again. Take the folder of keys along, and a token that you
made before, since a server with a database has no socket to log in by.

  fluffy tokens create
  FLUFFY_DATABASE=postgres://… fluffy ledger migrate
  FLUFFY_DATABASE=postgres://… fluffy server --keys ~/.local/state/fluffy/up/keys")]
    Migrate(MigrateArgs),
}

#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    /// The database; without it, FLUFFY_DATABASE, which other programs do not see
    #[arg(long, value_name = "POSTGRES")]
    pub(crate) to: Option<String>,
    /// The folder of the platform; without it, that of `fluffy up`
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The manifest before; with --release, the manifest after
    #[arg(required_unless_present = "release")]
    pub(crate) old: Option<PathBuf>,
    /// The manifest after; without it, the nearest `fluffy.toml`
    #[arg(conflicts_with = "release")]
    pub(crate) new: Option<PathBuf>,
    /// Compare with the manifest of this release, which a server knows
    #[arg(long, value_name = "RELEASE")]
    pub(crate) release: Option<String>,
    /// Use this context
    #[arg(long, requires = "release", add = ArgValueCompleter::new(complete::contexts))]
    pub(crate) context: Option<String>,
    /// Ask this server: `https://HOST:PORT` or `unix:PATH`
    #[arg(long, requires = "release")]
    pub(crate) server: Option<String>,
    /// The org
    #[arg(long, requires = "release")]
    pub(crate) org: Option<String>,
    /// The app
    #[arg(long, requires = "release")]
    pub(crate) app: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// List contexts; the current one is marked
    List,
    /// Show a context and where each of its values comes from
    Show {
        /// Its name; without it, the current one
        #[arg(add = ArgValueCompleter::new(complete::contexts))]
        name: Option<String>,
    },
    /// Make a context the current one
    Use {
        /// Its name
        #[arg(add = ArgValueCompleter::new(complete::contexts))]
        name: String,
    },
    /// Make a context, or change what is named; an empty value removes it
    #[command(after_help = "\
  fluffy context set work --server https://fluffy.example.com:7443 --org acme
  fluffy context set work --app shop --env staging
  fluffy context set work --env \"\"")]
    Set(ContextSetArgs),
    /// Forget a context and its login
    Remove {
        /// Its name
        #[arg(add = ArgValueCompleter::new(complete::contexts))]
        name: String,
    },
}

/// What `context set` takes.
#[derive(Debug, Args)]
pub(crate) struct ContextSetArgs {
    /// Its name
    #[arg(add = ArgValueCompleter::new(complete::contexts))]
    pub(crate) name: String,
    /// The server: `https://HOST:PORT`, or `unix:PATH` for a socket
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Trust the certificates in this file (PEM) and no others
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<String>,
    /// The org
    #[arg(long, value_name = "ORG")]
    pub(crate) org: Option<String>,
    /// The app
    #[arg(long, value_name = "APP")]
    pub(crate) app: Option<String>,
    /// The env; a protected one is never taken from here
    #[arg(long, value_name = "ENV")]
    pub(crate) env: Option<String>,
}

/// What `up` takes.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Where everything is kept, instead of the state directory
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Also listen here, with TLS; `none` for the socket alone [default: [::1]:7443 if it is free]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Let nodes join here
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen_nodes: Option<SocketAddr>,
    /// Run no instances on this machine
    #[arg(long)]
    pub(crate) no_node: bool,
    /// Serve the figures of node and edge for Prometheus here; an address of this machine, or
    /// `none`
    #[arg(long, value_name = "ADDRESS", default_value = "none")]
    pub(crate) metrics: String,
    /// The folder was put back to an earlier point: nodes and clients that
    /// have seen more go by what it holds now
    #[arg(long)]
    pub(crate) restored: bool,
    /// Write again although the ledger is broken at this event, as the server
    /// said; that you accept it goes on record
    #[arg(long, value_name = "SEQ")]
    pub(crate) accept_break: Option<u64>,
    #[command(flatten)]
    pub(crate) registries: RegistryArgs,
    #[command(flatten)]
    pub(crate) images: ImageArgs,
    #[command(flatten)]
    pub(crate) logs: LogArgs,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
}

/// How registries are reached, by servers and by their nodes.
#[derive(Debug, Args)]
pub(crate) struct RegistryArgs {
    /// Credentials for registries, as `docker login` writes them; only its owner may read the
    /// file, which is read anew at each use
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_auth: Option<PathBuf>,
    /// Ask this mirror for what the registry has, such as docker.io=https://mirror.example.com
    /// (repeat for more)
    #[arg(long = "registry-mirror", value_name = "HOST=URL")]
    pub(crate) registry_mirrors: Vec<Mirror>,
    /// This registry may be at a private address; with TLS (repeat for more)
    #[arg(long = "internal-registry", value_name = "HOST")]
    pub(crate) internal_registries: Vec<String>,
    /// Trust the certificates in this file (PEM) too where registries are concerned
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_ca: Option<PathBuf>,
    /// Speak to this registry in the clear (repeat for more)
    #[arg(long = "insecure-registry", value_name = "HOST")]
    pub(crate) insecure_registries: Vec<String>,
}

/// What becomes of what workloads print.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct LogArgs {
    /// Keep what workloads print for so many days
    #[arg(long, value_name = "DAYS", default_value_t = 7)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=30))]
    pub(crate) log_days: u8,
}

/// What images are on a node.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ImageArgs {
    /// Unfold images into folders, also where the kernel mounts EROFS files
    #[arg(long)]
    pub(crate) unfold_images: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// Make this machine a node of a cluster, with a one-time token
    #[command(after_help = "\
The token is read from a file, from FLUFFY_ENROLL_TOKEN or from standard input, never from the
command line, which others see. A machine that is a node already keeps what it has, unless --again.

  fluffy nodes enroll-token create               on a machine that is logged in
  fluffy node enroll --server fluffy.example.com:7444 --ca-pin sha256:… --token-file token")]
    Enroll(NodeEnrollArgs),
    /// Run what the cluster plans for this machine, until it is told to end
    #[command(after_help = "\
Instances outlive it: whoever starts it again finds them running. Ends on SIGTERM and Ctrl-C, and
tells systemd when it is ready (Type=notify).")]
    Run(NodeRunArgs),
    /// Say whether this machine can be a node, and what is missing
    Doctor(NodeDoctorArgs),
    /// Look at a running instance from outside: is it held as it should be?
    #[command(after_help = "\
Asks the kernel about the live processes: ids, namespaces, privileges, the filter of system calls,
files, devices, limits, sockets and the rules about packets. Ends with 1 if something does not hold.
It reads only, and needs root, as the node does.

  fluffy node audit inst_01J…
  fluffy node audit inst_01J… --data ~/.local/state/fluffy/up/node     a node of `fluffy up`")]
    Audit(NodeAuditArgs),
    /// The images that are kept here
    #[command(subcommand)]
    Cache(NodeCacheCommand),
    /// What is not about this machine: answered with where it is
    #[command(external_subcommand)]
    Other(Vec<String>),
}

/// What can be done with a node's images.
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCacheCommand {
    /// Read every image that is kept here, and say what is not what it was
    #[command(after_help = "\
Takes as long as reading all of it does, and needs the node's agent ended, so that nobody writes
meanwhile; instances go on. Ends with 1 if something is damaged: remove it, and it is fetched again.")]
    Verify(NodeVerifyArgs),
}

impl NodeCommand {
    /// `node doctor` without a further word.
    pub(crate) fn doctor() -> Self {
        Self::Doctor(NodeDoctorArgs {
            folder: NodeFolderArgs {
                data: PathBuf::from(NODE_FOLDER),
            },
            images: ImageArgs {
                unfold_images: false,
            },
        })
    }
}

/// What a machine can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MachineRole {
    /// A node, which runs instances
    Node,
}

/// Where a node keeps everything, unless somebody says otherwise.
const NODE_FOLDER: &str = "/var/lib/fluffy/node";

/// Where a node keeps everything.
#[derive(Debug, Args)]
pub(crate) struct NodeFolderArgs {
    /// Where everything is kept
    #[arg(long, value_name = "DIR", default_value = NODE_FOLDER)]
    pub(crate) data: PathBuf,
}

/// What `node doctor` takes.
#[derive(Debug, Args)]
pub(crate) struct NodeDoctorArgs {
    #[command(flatten)]
    pub(crate) folder: NodeFolderArgs,
    #[command(flatten)]
    pub(crate) images: ImageArgs,
}

/// What `node audit` takes.
#[derive(Debug, Args)]
pub(crate) struct NodeAuditArgs {
    /// The instance, as `fluffy instances list` names it
    pub(crate) instance: String,
    #[command(flatten)]
    pub(crate) folder: NodeFolderArgs,
}

/// What `node cache verify` takes.
#[derive(Debug, Args)]
pub(crate) struct NodeVerifyArgs {
    #[command(flatten)]
    pub(crate) folder: NodeFolderArgs,
    #[command(flatten)]
    pub(crate) images: ImageArgs,
}

/// What `node enroll` takes.
#[derive(Debug, Args)]
pub(crate) struct NodeEnrollArgs {
    #[command(flatten)]
    pub(crate) folder: NodeFolderArgs,
    /// Where servers take nodes (repeat for more)
    #[arg(long = "server", value_name = "HOST:PORT", required = true)]
    pub(crate) servers: Vec<String>,
    /// SHA-256 of the key of the cluster's root, as `fluffy server` says it
    #[arg(long, value_name = "PIN")]
    pub(crate) ca_pin: String,
    /// The file with the token; without it FLUFFY_ENROLL_TOKEN or standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Where other nodes reach this one; without it the address that reaches the server
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) underlay: Option<IpAddr>,
    /// Others do not reach it; the token must allow that
    #[arg(long, conflicts_with = "underlay")]
    pub(crate) behind_nat: bool,
    /// Replace what an earlier enrolment left; the token must name the node that it was
    #[arg(long)]
    pub(crate) again: bool,
    /// How long to wait for an operator, where the token takes an approval
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub(crate) approval_wait: Span,
}

/// What `node run` takes.
#[derive(Debug, Args)]
pub(crate) struct NodeRunArgs {
    #[command(flatten)]
    pub(crate) folder: NodeFolderArgs,
    /// Where figures for Prometheus are served; an address of this machine, or `none`
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9464")]
    pub(crate) metrics: String,
    /// Push figures to this collector by OTLP; on this machine, such as http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,
    /// What instances are told about where they are
    #[arg(long, value_name = "NAME", default_value = "local")]
    pub(crate) region: String,
    /// Speak to this registry in the clear (repeat for more)
    #[arg(long = "insecure-registry", value_name = "HOST")]
    pub(crate) insecure_registries: Vec<String>,
    #[command(flatten)]
    pub(crate) images: ImageArgs,
}

/// What servers are told about the network around them.
#[derive(Debug, Args)]
pub(crate) struct NetworkArgs {
    /// Ask this DNS server for proofs of hostnames (repeat for more) [default: this machine's]
    #[arg(long, value_name = "ADDRESS", value_parser = dns_server)]
    pub(crate) dns: Vec<SocketAddr>,
    /// Hostnames below this domain need no proof: they are the installation's own
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) suffix: Option<String>,
    /// Public IPv4 addresses for envs, such as 203.0.113.0/28 (repeat for more); `none` takes
    /// them all back [default: as set before]
    #[arg(long = "ipv4-pool", value_name = "RANGE")]
    pub(crate) ipv4_pool: Vec<String>,
}

/// An address, with the port of the DNS unless it names another.
fn dns_server(text: &str) -> Result<SocketAddr, String> {
    let address = || text.parse::<IpAddr>().ok().map(|it| (it, 53).into());
    let with_port = text.parse().ok();
    with_port
        .or_else(address)
        .ok_or_else(|| "write an address, such as 192.0.2.53 or [2001:db8::53]:5353".to_owned())
}

/// What `server` takes.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ServerArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ServerCommand>,
    /// Keep everything in this PostgreSQL, which other servers may share:
    /// `postgres://…`; better set FLUFFY_DATABASE, because arguments are seen
    #[arg(long, value_name = "URL", conflicts_with = "data")]
    pub(crate) database: Option<String>,
    /// The same database, where the other address is of a pooler that gives
    /// sessions for one transaction; better set FLUFFY_DATABASE_DIRECT
    #[arg(long, value_name = "URL", conflicts_with = "data")]
    pub(crate) database_direct: Option<String>,
    /// Keep everything in this folder; for a single server
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Where the keys are that secrets are sealed with; the same on every server
    #[arg(long, value_name = "DIR")]
    pub(crate) keys: Option<PathBuf>,
    /// Wait for the custodians of the master key, who bring their shares by
    /// `fluffy server unseal`; nothing of it is on a disk, which is made sure of
    /// where --keys says, too
    #[arg(long)]
    pub(crate) unseal: bool,
    /// Listen here for people and programs, with TLS
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:7443")]
    pub(crate) listen: SocketAddr,
    /// Listen here for nodes
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:7444")]
    pub(crate) listen_nodes: SocketAddr,
    /// Listen here for health checks and metrics, in the clear
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen_operators: Option<SocketAddr>,
    /// A name or address that this server is reached by (repeat for more)
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Where other servers of the same database reach this one, if not where
    /// it listens
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,
    /// Put segments of the archive here: a folder that all servers of the
    /// database see
    #[arg(long, value_name = "DIR", conflicts_with = "data")]
    pub(crate) archive: Option<PathBuf>,
    /// The database was put back to an earlier point: nodes and clients that
    /// have seen more go by what it holds now
    #[arg(long)]
    pub(crate) restored: bool,
    /// Write again although the ledger is broken at this event, as the server
    /// said; that you accept it goes on record
    #[arg(long, value_name = "SEQ")]
    pub(crate) accept_break: Option<u64>,
    #[command(flatten)]
    pub(crate) registries: RegistryArgs,
    #[command(flatten)]
    pub(crate) logs: LogArgs,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
}
