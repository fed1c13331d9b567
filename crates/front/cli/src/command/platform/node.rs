//! `fluffy node`, and the node of `fluffy up`: this machine runs instances.
//!
//! Puts the agent, its drivers and its images together, and tells people how
//! strongly instances are isolated. Decides nothing.

mod inspect;

use std::fs;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::client::{Ask, Client, Target};
use fluffy_api::node::join::{EnrolError, Enrolling, enrol, enrol_patiently, own_address};
use fluffy_api::node::{EnrolmentToken, PENDING, code_of, v1};
use fluffy_base::Digest;
use fluffy_contract::BoxFuture;
use fluffy_egress::HostNetwork;
use fluffy_image::{Options, public_or_listed, system_roots};
use fluffy_image::{Store, StoreLimits, WorkerCommand};
use fluffy_node::driver::rootfs::{self, Rootfs};
use fluffy_node::driver::scratch::Scratch;
use fluffy_node::driver::{InstanceDriver, Unavailable};
use fluffy_node::home::Credentials;
use fluffy_node::images::{Images, image_form};
use fluffy_node::{
    Agent, Collector, CollectorError, Handle, OtherFigures, RunError, Running, Settings,
    keep_running, privileges,
};
use fluffy_report::{ExitCode, Report};
use fluffy_shim::cgroup::{Group, keepers_of};
use rustix::thread::CapabilitySet;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::args::platform::derived;
use crate::args::{ImageArgs, NodeCacheCommand, NodeCommand, NodeEnrollArgs, NodeRunArgs};
use crate::command::Outcome;
use crate::failure::{self, Failure};
use crate::session::Session;

/// Where the token may be instead of a file.
const TOKEN: &str = "FLUFFY_ENROLL_TOKEN";

/// How long the node of a platform may take until its server knows it, and how
/// often that is looked at.
const MEETING: Duration = Duration::from_secs(5);
const GLANCE: Duration = Duration::from_millis(10);

/// Runs a command about the node that this machine is.
pub(crate) fn run(session: &Session, command: NodeCommand) -> Outcome {
    match command {
        NodeCommand::Enroll(args) => super::serve::work(enroll(session, &args)),
        NodeCommand::Run(args) => {
            give_up(privileges::NEEDED)?;
            super::serve::work(serve(session, &args))
        }
        NodeCommand::Doctor(args) => super::serve::work(inspect::examine(session, &args)),
        NodeCommand::Audit(args) => inspect::look_at(session, &args),
        NodeCommand::Cache(NodeCacheCommand::Verify(args)) => inspect::verify(session, &args),
        NodeCommand::Other(words) => Err(elsewhere(&words).into()),
    }
}

/// Where a command is that was looked for at the machine.
fn elsewhere(words: &[String]) -> Report {
    let word = words.first().map_or("", String::as_str);
    let report = Report::new(ExitCode::Usage, format!("there is no `fluffy node {word}`"));
    let wanted = format!("nodes {word}");
    let below = format!("{wanted} ");
    let known = derived()
        .into_iter()
        .any(|(words, _)| words == wanted || words.starts_with(&below));
    match known {
        true => report
            .why("`fluffy node` is about this machine; those of a cluster are under `fluffy nodes`")
            .fix(format!("fluffy nodes {}", words.join(" "))),
        false => report.fix("`fluffy node --help` and `fluffy nodes --help` say what there is"),
    }
}

/// Gives up what a node does not need, while this process has one thread.
pub(super) fn give_up(needed: CapabilitySet) -> Result<(), Report> {
    privileges::give_up(needed).map_err(|error| {
        Report::from_error(ExitCode::Failure, &error)
            .why("privileges that a node does not need could not be given up")
            .fix("run it outside of a sandbox that forbids that")
    })
}

/// How the node of this process is set up.
#[derive(Debug, Clone)]
pub(super) struct Own {
    pub(super) images: ImageArgs,
    /// Where its figures are served.
    pub(super) metrics: Option<SocketAddr>,
    /// What is served there too.
    pub(super) other_figures: Option<OtherFigures>,
}

/// A node that runs in this process.
pub(super) struct Local {
    /// Its id.
    pub(super) id: String,
    /// How strongly it isolates.
    pub(super) isolation: Vec<String>,
    /// What its instances get less than they declare.
    pub(super) shortfalls: Vec<String>,
    folder: PathBuf,
    halt: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Local {
    /// Ends it, and what it runs.
    pub(super) async fn halt(self) {
        let _ = self.halt.send(());
        let _ = self.task.await;
        // Both are empty then; what is not stays, for the next start to find.
        let _ = fs::remove_dir(run_dir(&self.folder));
        let group = group(&self.folder);
        for name in [keepers_of(&group), group] {
            let _ = Group::named(&name).and_then(|group| group.remove());
        }
    }
}

/// Makes this machine the node of the platform that runs in this process.
pub(super) async fn local(
    folder: &Path,
    socket: &Path,
    (nodes, pin): (SocketAddr, Digest),
    own: &Own,
) -> Result<Local, String> {
    let drivers = drivers(folder);
    let isolation = usable(&drivers).await?;
    let shortfalls = shortfalls(&drivers).await;
    let server = vec![nodes.to_string()];
    let known = Credentials::read(folder).map_err(|error| chain(&error))?;
    let credentials = match known {
        Some(known) => known.at(server),
        None => {
            let token = token_of(socket).await?;
            let enrolling = Enrolling {
                server: (nodes.ip().to_string(), nodes.port()),
                pin,
                token,
                role: v1::Role::Worker,
                underlay: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
                facts: fluffy_node::facts(&drivers).await,
                former_node_id: String::new(),
                fingerprint: Vec::new(),
            };
            let enrolled = enrol(&enrolling).await.map_err(|error| chain(&error))?;
            let made = Credentials::new(&enrolled, server);
            made.keep(folder).map_err(|error| chain(&error))?;
            made
        }
    };
    let id = credentials.node_id.clone();
    let settings = Settings {
        folder: folder.to_owned(),
        run: run_dir(folder),
        region: "local".to_owned(),
        metrics: own.metrics,
        other_figures: own.other_figures.clone(),
        collector: None,
    };
    // How registries are reached its server says.
    let images = images(folder, &[], own.images).map_err(|error| chain(&error))?;
    let home = folder.to_owned();
    let open = move || -> BoxFuture<'static, Result<Running, RunError>> {
        // Renewed ones are on the disk.
        let renewed = Credentials::read(&home).ok().flatten();
        let current = renewed.map_or_else(
            || credentials.clone(),
            |renewed| renewed.at(credentials.servers.clone()),
        );
        let opened = Agent::open(settings.clone(), current, drivers.clone(), images.clone());
        Box::pin(async move {
            let (agent, handle) = opened.await?;
            let running: BoxFuture<'static, ()> = Box::pin(agent.run());
            Ok((running, handle))
        })
    };
    let first = open().await.map_err(|error| chain(&error))?;
    let (_, agent) = &first;
    let agent = agent.clone();
    let (halt, halted) = oneshot::channel();
    let task = tokio::spawn(keep_running(first, open, halted));
    meet(&agent).await;
    Ok(Local {
        id,
        isolation,
        shortfalls,
        folder: folder.to_owned(),
        halt,
        task,
    })
}

/// Waits for a node to be known to its server, for a while: until then no
/// command reaches what runs there.
async fn meet(agent: &Handle) {
    let deadline = Instant::now() + MEETING;
    while Instant::now() < deadline {
        match agent.status().await {
            Some(status) if !status.connected => sleep(GLANCE).await,
            _ => return,
        }
    }
}

/// A token from the platform on this machine, as its owner gets one.
async fn token_of(socket: &Path) -> Result<EnrolmentToken, String> {
    let client = Client::connect(Target::Socket(socket.to_owned())).await;
    let client = client.map_err(|error| chain(&error))?;
    let ask = Ask::new(Operation::CreateEnrollmentToken, &[]).body(&json!({"ttl_seconds": 300}));
    let made = client.call(ask).await.map_err(|error| chain(&error))?;
    let secret = made.value.get("secret").and_then(|it| it.as_str());
    EnrolmentToken::parse(secret.unwrap_or_default()).map_err(|error| error.to_string())
}

/// Every way to run instances that this program knows.
fn drivers(folder: &Path) -> Vec<Arc<dyn InstanceDriver>> {
    let Ok(program) = std::env::current_exe() else {
        return Vec::new();
    };
    let arguments = ["worker", "vm-shim"].map(str::to_owned).to_vec();
    let formats = ["worker", "mke2fs"].map(str::to_owned).to_vec();
    let scratch = Scratch::new(folder.join("scratch"), program.clone(), formats);
    let rootfs = Rootfs::new(program, arguments, &group(folder)).with_scratch(scratch);
    vec![Arc::new(rootfs)]
}

/// The control groups of a node's instances: nodes that share a machine have
/// some of their own.
fn group(folder: &Path) -> String {
    format!("{}-{}", rootfs::GROUP, short(folder))
}

/// What instances of the drivers that work get less than they declare.
async fn shortfalls(drivers: &[Arc<dyn InstanceDriver>]) -> Vec<String> {
    let mut all = Vec::new();
    for driver in drivers {
        if let Ok(probe) = driver.probe().await {
            all.extend(probe.room.shortfall());
        }
    }
    all
}

/// The levels of the drivers that work; why none does, if none does.
async fn usable(drivers: &[Arc<dyn InstanceDriver>]) -> Result<Vec<String>, String> {
    let (mut levels, mut reasons) = (Vec::new(), Vec::new());
    for driver in drivers {
        match driver.probe().await {
            Ok(_) => levels.push(driver.level().to_string()),
            Err(Unavailable { reason, fix }) => {
                reasons.push(format!("{}: {reason}; {fix}", driver.name()));
            }
        }
    }
    match levels.is_empty() {
        false => Ok(levels),
        true if reasons.is_empty() => Err("this program has no driver for it".to_owned()),
        true => Err(reasons.join("; ")),
    }
}

fn images(folder: &Path, insecure: &[String], form: ImageArgs) -> io::Result<Images> {
    let insecure: std::collections::BTreeSet<String> = insecure.iter().cloned().collect();
    let mut options = Options::public(Arc::new(HostNetwork), system_roots());
    options.judge = public_or_listed(insecure.clone());
    options.insecure = insecure;
    let store = store(folder, form)?;
    Ok(Images::of_store(store, options))
}

fn store(folder: &Path, form: ImageArgs) -> io::Result<Store> {
    let folder = folder.join("images");
    fs::create_dir_all(&folder)?;
    let worker = WorkerCommand {
        program: std::env::current_exe()?,
        arguments: ["worker", "image"].map(str::to_owned).to_vec(),
    };
    let mut limits = StoreLimits::of_disk(&folder)?;
    limits.form = image_form(form.unfold_images).0;
    Store::open(&folder, limits, worker)
}

/// Where sockets are: a path must be short, and another for every node.
fn run_dir(folder: &Path) -> PathBuf {
    PathBuf::from("/run/fluffy").join(short(folder))
}

/// A name for a folder that is no other's.
fn short(folder: &Path) -> String {
    let name = Digest::of(folder.as_os_str().as_encoded_bytes()).to_string();
    name.chars().take(12).collect()
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

async fn enroll(session: &Session, args: &NodeEnrollArgs) -> Outcome {
    let folder = &args.folder.data;
    let known = Credentials::read(folder);
    if let (Ok(Some(known)), false) = (&known, args.again) {
        return Err(
            Report::new(ExitCode::Conflict, "this machine is a node already")
                .why(format!(
                    "`{}` belongs to {}",
                    folder.display(),
                    known.node_id
                ))
                .fix("run it with `fluffy node run`, or enrol it --again")
                .into(),
        );
    }
    let token = read_token(session, args.token_file.as_deref())?;
    let pin = args.ca_pin.strip_prefix("sha256:").unwrap_or(&args.ca_pin);
    let pin: Digest = pin.parse().map_err(|_| {
        Report::new(ExitCode::Usage, format!("`{}` is no pin", args.ca_pin))
            .fix("copy it from what `fluffy server` or the token's maker printed")
    })?;
    let server = args.servers.first().map_or("", String::as_str);
    let parts = server.rsplit_once(':');
    let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = parts.ok_or_else(|| {
        Report::new(ExitCode::Usage, format!("`{server}` is not HOST:PORT"))
            .fix("write for example `fluffy.example.com:7444`")
    })?;
    let drivers = drivers(folder);
    let host = host.trim_matches(['[', ']']).to_owned();
    let underlay = match args.behind_nat {
        true => None,
        false => Some(underlay(args.underlay, (&host, port)).await?),
    };
    let enrolling = Enrolling {
        server: (host, port),
        pin,
        token,
        role: v1::Role::Worker,
        underlay,
        facts: fluffy_node::facts(&drivers).await,
        former_node_id: known
            .ok()
            .flatten()
            .map_or_else(String::new, |known| known.node_id),
        fingerprint: fluffy_node::machine(&pin, folder),
    };
    let mut waited = false;
    let enrolled = enrol_patiently(&enrolling, args.approval_wait.into(), |waiting| {
        waited = true;
        let said = format!("{}; its key is sha256:{}", waiting.said, waiting.key);
        session.printer.note(&said);
    });
    let enrolled = enrolled.await;
    let enrolled = enrolled.map_err(|error| match waited {
        true => not_approved(&error),
        false => refused(&error, &enrolling),
    })?;
    let made = Credentials::new(&enrolled, args.servers.clone());
    made.keep(folder).map_err(|error| {
        let fix = "make the folder writable, and enrol with a new token";
        Failure::of(ExitCode::Transient, &error, fix)
    })?;
    if session.json() {
        session.printer.json(&json!({
            "api_version": "v1", "kind": "Enrolled", "node_id": made.node_id,
            "cluster_id": made.cluster_id,
        }))?;
    } else {
        session
            .printer
            .data(&format!("enrolled as {}", made.node_id))?;
        session.printer.note("start it with `fluffy node run`");
    }
    Ok(ExitCode::Success)
}

fn read_token(session: &Session, file: Option<&Path>) -> Result<EnrolmentToken, Failure> {
    let text = match (file, session.variable(TOKEN)) {
        (Some(file), _) => {
            fs::read_to_string(file).map_err(|error| failure::unreadable(file, &error))?
        }
        (None, Some(text)) => text,
        (None, None) => {
            let mut text = String::new();
            // No token is that long.
            let read = io::stdin().take(256).read_to_string(&mut text);
            read.map_err(|_| no_token())?;
            text
        }
    };
    EnrolmentToken::parse(text.trim()).map_err(|_| no_token().into())
}

fn no_token() -> Report {
    Report::new(ExitCode::Usage, "there is no enrolment token")
        .why("a token is `enroll_` and 43 characters")
        .fix("make one with `fluffy nodes enroll-token create`, and give it with --token-file")
}

/// Where others reach this machine: as was said, or the address that reaches
/// the server.
async fn underlay(said: Option<IpAddr>, server: (&str, u16)) -> Result<IpAddr, Failure> {
    match said {
        Some(said) => Ok(said),
        None => own_address(server).await.map_err(|error| {
            let what = format!("there is no way to {}:{}", server.0, server.1);
            let report = Report::new(ExitCode::Transient, what).why(error.to_string());
            report
                .fix("check the server's address and this machine's network")
                .into()
        }),
    }
}

fn refused(error: &EnrolError, enrolling: &Enrolling) -> Failure {
    let code = match error {
        EnrolError::Refused(status) => code_of(status).unwrap_or_default(),
        _ => "",
    };
    let (exit, fix) = match code {
        "enroll_denied" => (
            ExitCode::Denied,
            "make a new token: each is good once, and not long",
        ),
        "enroll_unreachable" => (
            ExitCode::Transient,
            "let the server send UDP to that address, or say the right one with --underlay, and \
             use the same token again",
        ),
        "enroll_policy" if enrolling.underlay.is_none() => (
            ExitCode::Denied,
            "make a new token with `fluffy nodes enroll-token create --allow-nat`, or say where \
             others reach this machine with --underlay",
        ),
        "enroll_policy" => (ExitCode::Denied, "make a new token for such a machine"),
        "enroll_duplicate" => (
            ExitCode::Conflict,
            "make a new token with `fluffy nodes enroll-token create --replaces NODE`, where NODE \
             is what this machine was (`fluffy nodes list`), and enrol --again",
        ),
        "enroll_proof_failed" => (ExitCode::Denied, "make a new token, and enrol again"),
        "enroll_bad_request" => (
            ExitCode::Usage,
            "set this machine's clock, run `fluffy node doctor`, and use the same version as the \
             server; the token stays good",
        ),
        "overlay_full" => (
            ExitCode::Conflict,
            "remove nodes that are gone; the token stays good",
        ),
        "enroll_retry" => (ExitCode::Transient, "try again; the token stays good"),
        "rate_limited" => (ExitCode::Transient, "wait a minute, and try again"),
        _ => (
            ExitCode::Transient,
            "check the server's address and the pin, and try again",
        ),
    };
    Failure::of(exit, error, fix)
}

/// Why a machine did not join that had to be approved: its key is gone, and the
/// token was for no other.
fn not_approved(error: &EnrolError) -> Failure {
    let code = match error {
        EnrolError::Refused(status) => code_of(status).unwrap_or_default(),
        _ => "",
    };
    let (exit, fix) = match code {
        "enroll_policy" => (ExitCode::Denied, "ask whoever runs the platform"),
        "enroll_denied" => (
            ExitCode::Denied,
            "make a new token: this one was revoked, or its time was over before anybody \
             approved the machine",
        ),
        PENDING => (
            ExitCode::Transient,
            "make a new token, and have the machine approved while it waits (--approval-wait)",
        ),
        _ => (ExitCode::Transient, "make a new token, and enrol again"),
    };
    Failure::of(exit, error, fix)
}

async fn serve(session: &Session, args: &NodeRunArgs) -> Outcome {
    super::serve::log();
    let ended = super::serve::until_told();
    let folder = &args.folder.data;
    let credentials = Credentials::read(folder).map_err(|error| {
        let fix = "enrol the machine --again";
        Failure::of(ExitCode::Conflict, &error, fix)
    })?;
    let Some(credentials) = credentials else {
        return Err(
            Report::new(ExitCode::Conflict, "this machine is no node yet")
                .why(format!("`{}` has no credentials", folder.display()))
                .fix("enrol it with `fluffy node enroll`")
                .into(),
        );
    };
    let drivers = drivers(folder);
    let isolation = usable(&drivers).await.map_err(|why| {
        Report::new(ExitCode::Failure, "this machine cannot run instances")
            .why(why)
            .fix("run `fluffy node doctor`")
    })?;
    for less in shortfalls(&drivers).await {
        session.printer.warn(&less);
    }
    let settings = Settings {
        folder: folder.clone(),
        run: run_dir(folder),
        region: args.region.clone(),
        metrics: metrics(&args.metrics)?,
        other_figures: None,
        collector: args.otlp.as_deref().map(collector).transpose()?,
    };
    let images = images(folder, &args.insecure_registries, args.images)
        .map_err(|error| failure::unwritable(folder, &error))?;
    let id = credentials.node_id.clone();
    let opened = Agent::open(settings, credentials, drivers, images).await;
    let stopped = |error: &fluffy_node::RunError| {
        let fix = "end the other agent, or check that the folder is yours and has room";
        Failure::of(ExitCode::Conflict, error, fix)
    };
    let (agent, handle) = opened.map_err(|error| stopped(&error))?;
    let mut running = tokio::spawn(agent.run());
    if session.json() {
        let at = handle.status().await.and_then(|status| status.metrics);
        session.printer.json(&json!({
            "api_version": "v1", "kind": "Started", "node_id": id, "isolation": isolation,
            "metrics": at.map(|at| at.to_string()),
        }))?;
    } else {
        session
            .printer
            .data(&format!("{id} runs instances: {}", words(&isolation)))?;
    }
    super::serve::ready();
    let left = tokio::select! {
        () = ended => {
            handle.leave().await;
            running.await
        }
        // Whoever supervises this process starts another, which adopts.
        failed = &mut running => failed,
    };
    left.map_err(dead)?;
    Ok(ExitCode::Success)
}

/// The agent ended without being told to; what it ran goes on.
fn dead(failed: tokio::task::JoinError) -> Report {
    let why = match failed.try_into_panic() {
        Ok(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        }
        Err(_) => None,
    };
    Report::new(ExitCode::Failure, "the agent of this node failed")
        .why(why.unwrap_or_else(|| "its task was ended".to_owned()))
        .fix("start it again: its instances run on and are adopted; `fluffy node doctor` looks at this machine")
}

/// How strongly instances are isolated, so that nobody takes it for more.
pub(super) fn words(isolation: &[String]) -> String {
    let word = |level: &String| match level.as_str() {
        "shared-kernel" => "SHARED KERNEL".to_owned(),
        other => other.to_owned(),
    };
    isolation.iter().map(word).collect::<Vec<_>>().join(", ")
}

pub(super) fn metrics(text: &str) -> Result<Option<SocketAddr>, Report> {
    match text {
        "none" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            Report::new(
                ExitCode::Usage,
                format!("`{text}` is not an address and port"),
            )
            .fix("write for example `127.0.0.1:9464`, or `none`")
        }),
    }
}

fn collector(text: &str) -> Result<Collector, Report> {
    text.parse().map_err(|error: CollectorError| {
        let what = format!("`{text}` is no place for figures");
        Report::new(ExitCode::Usage, what)
            .why(error.to_string())
            .fix("run a collector on this machine, and write for example `http://127.0.0.1:4318`")
    })
}
