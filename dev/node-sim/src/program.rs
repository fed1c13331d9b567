//! The program `fluffy-node-sim`: simulated nodes in a process of their own.
//!
//! In the library too, so that tests of other crates can run it in a process
//! that they start as themselves.

use std::ffi::OsString;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use fluffy_api::node::join::Enrolling;
use fluffy_api::node::{EnrolmentToken, v1};
use fluffy_base::Digest;

use crate::behaviour::Behaviour;
use crate::control::Controller;
use crate::home::{Credentials, Home, enrol};
use crate::node::{Node, Setup};

/// Simulated nodes that speak the real node protocol.
#[derive(Debug, Parser)]
struct Args {
    /// Host of the server.
    #[arg(long, default_value = "localhost")]
    host: String,
    /// Port of the server for nodes (repeat for more servers, which are tried
    /// one after the other).
    #[arg(long = "port", required = true)]
    ports: Vec<u16>,
    /// SHA-256 of the key of the cluster's root; only to enrol.
    #[arg(long)]
    ca_pin: Option<Digest>,
    /// A file with one enrolment token per line; only to enrol.
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// The folder in which nodes keep what they know.
    #[arg(long)]
    home: PathBuf,
    /// How many nodes.
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    /// Where to listen for commands.
    #[arg(long)]
    control: Option<PathBuf>,
    /// The address at which others would reach it; none is behind NAT.
    #[arg(long)]
    underlay: Option<IpAddr>,
    /// The kind of processors: `amd64` or `arm64`.
    #[arg(long, default_value = "amd64")]
    arch: String,
    /// The drivers, each with its level: `container-rootfs=shared-kernel`.
    #[arg(long, default_values_t = ["microvm-firecracker=microvm".to_owned(), "container-rootfs=shared-kernel".to_owned()])]
    driver: Vec<String>,
    /// Processor cores.
    #[arg(long, default_value_t = 16)]
    cores: u64,
    /// Bytes of memory.
    #[arg(long, default_value_t = 64 << 30)]
    memory: u64,
    /// Bytes of disk.
    #[arg(long, default_value_t = 1 << 40)]
    disk: u64,
    /// The digest of an image that they need not fetch (repeat for more).
    #[arg(long = "cached-image")]
    cached_images: Vec<String>,
    /// How often a node says that it is alive, if not as the server says.
    #[arg(long)]
    heartbeat_ms: Option<u64>,
    /// How they behave, as JSON.
    #[arg(long, default_value = "{}")]
    behaviour: String,
}

/// Runs simulated nodes as these words say, the program's name first.
///
/// # Errors
/// The words are no such words, or a node can't run.
pub async fn run(words: Vec<OsString>) -> Result<()> {
    let args = Args::try_parse_from(words)?;
    let behaviour: Behaviour = serde_json::from_str(&args.behaviour)?;
    let tokens = match &args.token_file {
        None => String::new(),
        Some(path) => std::fs::read_to_string(path).context("cannot read the tokens")?,
    };
    let mut tokens = tokens.lines();
    let (mut running, mut handles) = (tokio::task::JoinSet::new(), Vec::new());
    for place in 0..args.nodes {
        let home = Home::open(&args.home.join(format!("node-{place}")))?;
        let credentials = match home.credentials()? {
            Some(kept) => kept,
            None => join(&args, &home, tokens.next()).await?,
        };
        writeln!(std::io::stdout(), "{}", credentials.node_id)?;
        let (node, handle) = Node::new(setup(&args)?, home, credentials, behaviour.clone())?;
        running.spawn(node.run());
        handles.push(handle);
    }
    let controller = match &args.control {
        None => None,
        Some(path) => Some(Controller::new(path, handles.clone())?),
    };
    tokio::select! {
        ended = running.join_next() => ended.context("there are no nodes")??,
        () = async { match controller {
            Some(controller) => controller.run().await,
            None => std::future::pending().await,
        } } => Ok(()),
    }
}

/// Enrols a node that has no credentials yet, and keeps them.
async fn join(args: &Args, home: &Home, token: Option<&str>) -> Result<Credentials> {
    let (Some(pin), Some(token)) = (args.ca_pin, token) else {
        bail!("a node without credentials needs --ca-pin and a token");
    };
    let credentials = enrol(&Enrolling {
        server: (args.host.clone(), first_port(args)?),
        pin,
        token: EnrolmentToken::parse(token)?,
        role: v1::Role::Worker,
        underlay: args.underlay,
        facts: facts(args)?,
        former_node_id: String::new(),
        fingerprint: Vec::new(),
    })
    .await?;
    home.keep_credentials(&credentials)?;
    Ok(credentials)
}

fn first_port(args: &Args) -> Result<u16> {
    args.ports.first().copied().context("there is no port")
}

fn setup(args: &Args) -> Result<Setup> {
    Ok(Setup {
        host: args.host.clone(),
        ports: args.ports.clone(),
        facts: facts(args)?,
        capacity: v1::Capacity {
            cpu_cores: args.cores,
            memory_bytes: args.memory,
            disk_bytes: args.disk,
            cached_images: args.cached_images.clone(),
        },
        heartbeat: args.heartbeat_ms.map(Duration::from_millis),
    })
}

fn facts(args: &Args) -> Result<v1::Facts> {
    let driver = |text: &String| {
        let (name, level) = text.split_once('=').context("a driver has a level")?;
        Ok(v1::Driver {
            name: name.to_owned(),
            level: level.to_owned(),
            max_vcpus: 32,
            max_memory_bytes: args.memory,
        })
    };
    Ok(v1::Facts {
        failed_checks: Vec::new(),
        arch: args.arch.clone(),
        drivers: args.driver.iter().map(driver).collect::<Result<_>>()?,
        labels: [("simulated".to_owned(), "true".to_owned())].into(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}
