//! What a person types about the platform.
//!
//! Only clap lives here; the work is in `command/platform`.

mod fields;
mod tree;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand};

pub(crate) use fields::{Field, FieldKind, fields, kind};
pub(crate) use tree::{PlatformCommand, Waits, body_id, derived, own_params, waits};

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
    #[arg(long, requires = "release")]
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
        name: Option<String>,
    },
    /// Make a context the current one
    Use {
        /// Its name
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
        name: String,
    },
}

/// What `context set` takes.
#[derive(Debug, Args)]
pub(crate) struct ContextSetArgs {
    /// Its name
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
    /// Speak to this registry in the clear (repeat for more)
    #[arg(long = "insecure-registry", value_name = "HOST")]
    pub(crate) insecure_registries: Vec<String>,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
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
pub(crate) struct ServerArgs {
    /// Keep everything in this PostgreSQL, which other servers may share:
    /// `postgres://…`; better set FLUFFY_DATABASE, because arguments are seen
    #[arg(long, value_name = "URL", conflicts_with = "data")]
    pub(crate) database: Option<String>,
    /// Keep everything in this folder; for a single server
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Where the keys are that secrets are sealed with; the same on every server
    #[arg(long, value_name = "DIR")]
    pub(crate) keys: Option<PathBuf>,
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
    /// The database was put back to an earlier point: nodes and clients that
    /// have seen more go by what it holds now
    #[arg(long)]
    pub(crate) restored: bool,
    /// Speak to this registry in the clear (repeat for more)
    #[arg(long = "insecure-registry", value_name = "HOST")]
    pub(crate) insecure_registries: Vec<String>,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
}
