//! `fluffy up` and `fluffy server`: the control plane in this process.
//!
//! Says what `fluffy-server` is to open, and tells people how to reach it.
//! Decides nothing. Ends on SIGINT and SIGTERM, after what runs has ended.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fluffy_config::env;
use fluffy_image::Registries;
use fluffy_ledger::{Actor, ActorKind, AddressError, LedgerOptions, PostgresAddress, Signing};
use fluffy_node::privileges;
use fluffy_report::{ExitCode, Report};
use fluffy_server::dns::Dns;
use fluffy_server::doors::{Doors, Open, OpenDoorsError};
use fluffy_server::hostnames::Hostnames;
use fluffy_server::logs::Keeping;
use fluffy_server::loops::lease::Timing;
use fluffy_server::platform::{Founder, OpenPlatformError, Platform, Storage};
use fluffy_server::server::{Options, Server};
use fluffy_server::unseal::ServeDeskError;
use fluffy_vault::LoadKeyError;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::custody;
use super::edge;
use super::node::{self, Local, Own};
use super::target;
use crate::args::platform::ServerCommand;
use crate::args::{LogArgs, NetworkArgs, RegistryArgs, ServerArgs, UpArgs};
use crate::command::Outcome;
use crate::failure::{self, Failure};
use crate::session::Session;

/// Where `fluffy up` listens beside its socket, if it can.
const LISTEN: &str = "[::1]:7443";

/// Where its own node finds it, if nobody says where nodes join.
const HERE: &str = "127.0.0.1:0";

/// What is to run.
struct Plan {
    storage: Storage,
    /// Whether the database was put back to an earlier point.
    restored: bool,
    /// The event at which somebody accepts that the ledger is broken.
    accept_break: Option<u64>,
    founder: Founder,
    /// Where we leave what people need to trust us.
    folder: PathBuf,
    doors: Doors,
    /// Whether this machine is its node as well, and how that is set up.
    node: Option<Own>,
}

/// Runs the platform of one person until it is told to end.
pub(crate) fn up(session: &Session, args: &UpArgs) -> Outcome {
    let paths = &session.here()?.paths;
    paths.create().map_err(|error| failure::paths(&error))?;
    let folder = args.data.clone();
    let folder = folder.unwrap_or_else(|| target::up_directory(paths));
    private(&folder)?;
    let socket = folder.join("api.sock");
    alone(&socket)?;
    let own = Own {
        images: args.images,
        metrics: node::metrics(&args.metrics)?,
        other_figures: None,
    };
    let plan = Plan {
        storage: Storage::Directory(folder.clone()),
        restored: args.restored,
        accept_break: args.accept_break,
        founder: Founder::Local,
        doors: Doors {
            keys: folder.join("keys"),
            api: public(session, args.listen.as_deref())?,
            nodes: match args.no_node {
                true => args.listen_nodes,
                // Its own node needs a way in, too.
                false => args.listen_nodes.or_else(|| HERE.parse().ok()),
            },
            socket: Some(socket),
            images: Some(folder.join("images")),
            logs: Some(logs(&folder, args.logs)),
            edge: true,
            names: names(&[]),
            certificate: Some(folder.join("certificate")),
            hostnames: hostnames(&args.network),
            ipv4_pool: ipv4_pool(&args.network),
            registries: registries(&args.registries)?,
            ..Doors::default()
        },
        node: (!args.no_node).then_some(own),
        folder,
    };
    node::give_up(privileges::NEEDED | privileges::NEEDED_BY_EDGE)?;
    work(run(session, plan))
}

/// Runs a server until it is told to end.
pub(crate) fn server(session: &Session, args: &ServerArgs) -> Outcome {
    if let Some(ServerCommand::Unseal(args)) = &args.command {
        return custody::unseal(session, args);
    }
    let paths = &session.here()?.paths;
    let database = args.database.clone();
    let database = database.or_else(|| session.variable(env::FLUFFY_DATABASE));
    let database = database.filter(|_| args.data.is_none());
    let folder = match &args.data {
        Some(folder) => folder.clone(),
        None => paths.state_dir.join("server"),
    };
    private(&folder)?;
    let storage = match database {
        Some(url) => Storage::Database {
            address: Box::new(shared(session, args, &url)?),
            archive: args.archive.clone(),
        },
        None if args.database_direct.is_some() => {
            let what = "the database has a direct address and no other";
            let report = Report::new(ExitCode::Usage, what);
            return Err(report
                .fix("name the pooler by --database or FLUFFY_DATABASE")
                .into());
        }
        None => Storage::Directory(folder.clone()),
    };
    let plan = Plan {
        storage,
        restored: args.restored,
        accept_break: args.accept_break,
        founder: Founder::Invited,
        doors: Doors {
            keys: args.keys.clone().unwrap_or_else(|| folder.join("keys")),
            unseal: unseal(&folder, args.unseal)?,
            // Where they would be if nobody had said where.
            keyless: vec![folder.join("keys")],
            api: Some(args.listen),
            nodes: Some(args.listen_nodes),
            operators: args.listen_operators,
            names: names(&args.names),
            advertise: args.advertise.clone(),
            logs: Some(logs(&folder, args.logs)),
            certificate: Some(folder.join("certificate")),
            hostnames: hostnames(&args.network),
            ipv4_pool: ipv4_pool(&args.network),
            registries: registries(&args.registries)?,
            ..Doors::default()
        },
        node: None,
        folder,
    };
    node::give_up(privileges::NEEDED_BY_SERVER)?;
    work(run(session, plan))
}

/// Where custodians bring shares, if they have the keys.
fn unseal(folder: &Path, wanted: bool) -> Result<Option<PathBuf>, Failure> {
    let socket = custody::socket(folder);
    wanted.then(|| absolute(&socket)).transpose()
}

/// The address of a database; it may hold a password, so it is not shown.
pub(super) fn address(url: &str) -> Result<PostgresAddress, Report> {
    url.parse().map_err(|error: AddressError| {
        Report::new(ExitCode::Usage, "the address of the database can't be used")
            .why(error.to_string())
            .fix("write postgres://USER:PASSWORD@HOST/DATABASE in FLUFFY_DATABASE")
    })
}

/// The database of a server, and the way past its pooler if there is one.
fn shared(session: &Session, args: &ServerArgs, url: &str) -> Result<PostgresAddress, Report> {
    let main = address(url)?;
    let direct = args.database_direct.clone();
    let direct = direct.or_else(|| session.variable(env::FLUFFY_DATABASE_DIRECT));
    let direct = direct.as_deref().map(address).transpose()?;
    for address in [Some(&main), direct.as_ref()].into_iter().flatten() {
        if address.takes_anyone() {
            session.printer.warn(
                "the database is on another machine, and nobody checks that it is the right one; \
                 add sslmode=verify-full to its address",
            );
        }
    }
    Ok(match direct {
        Some(direct) => main.with_direct(direct),
        None => main,
    })
}

/// Runs with every core of the machine.
pub(super) fn work(server: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| failure::no_threads(&error))?;
    runtime.block_on(server)
}

/// Has what goes wrong in the background written where operators look.
pub(super) fn log() {
    let log = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(io::stderr)
        .with_ansi(false);
    // Whoever was first keeps it.
    let _ = log.try_init();
}

async fn run(session: &Session, plan: Plan) -> Outcome {
    log();
    let ended = until_told();
    tokio::pin!(ended);
    let options = Options {
        storage: plan.storage.clone(),
        ledger: LedgerOptions {
            // Apart from the ledger: who can rewrite one can't sign the other.
            signing: Some(Signing::in_directory(&plan.folder.join("notary"))),
            ..LedgerOptions::default()
        },
        founder: plan.founder,
        timing: Timing::default(),
    };
    let mut server = Server::start(options).await.map_err(|error| {
        let fix = match &error {
            OpenPlatformError::TooOld { .. } => {
                "install the version of fluffy that wrote it last, or a later one"
            }
            _ => "check that the folder or database is there, yours, and not in use",
        };
        Failure::of(ExitCode::Transient, &error, fix)
    })?;
    settle_break(session, server.platform(), &plan).await?;
    if plan.restored {
        server.platform().restored().await.map_err(|error| {
            let fix = "check that the database can be written";
            Failure::of(ExitCode::Transient, &error, fix)
        })?;
    }
    let socket = plan.doors.socket.clone();
    if let Some(socket) = &plan.doors.unseal {
        session.printer.warn(&format!(
            "the master key is with its custodians: until they bring their shares by `fluffy server \
             unseal` (at {}), a start without this server's certificate opens no door, and any \
             other keeps secrets, exec, invitations and new nodes waiting",
            socket.display()
        ));
    }
    let awaited = Arc::new(Notify::new());
    let doors = Doors {
        awaited: Some(Arc::clone(&awaited)),
        ..plan.doors
    };
    // A first start waits for shares, for as long as nobody ends it.
    let opened = {
        let mut opening = pin!(server.open(doors));
        loop {
            tokio::select! {
                opened = &mut opening => break Some(opened.map_err(|error| closed(&error))),
                // Whoever starts us has a limit for starts; custodians have none.
                () = awaited.notified() => tell_systemd("READY=1\nSTATUS=waiting for custodians"),
                () = &mut ended => break None,
            }
        }
    };
    let Some(opened) = opened else {
        server.stop().await;
        return Ok(ExitCode::Success);
    };
    let (mut local, mut ways) = (None, None);
    let told = match opened {
        Ok(mut open) => {
            // Before instances are looked at: those that run are reached at once.
            if let Some(seat) = open.edge.take() {
                ways = edge::begin(&plan.folder.join("edge"), seat).await;
            }
            let figures = ways.as_ref().map(edge::Local::figures);
            let own = plan.node.map(|own| Own {
                other_figures: figures,
                ..own
            });
            local = begin(&plan.folder, socket.as_deref(), &open, own.as_ref()).await;
            let node = local
                .as_ref()
                .map(|local| local.as_ref().map_err(String::as_str));
            let places = (plan.folder.as_path(), socket.as_deref());
            tell(session, places, &open, &mut server, node)
        }
        Err(failure) => Err(failure),
    };
    if told.is_ok() {
        ready();
        ended.await;
    }
    if let Some(Ok(local)) = local {
        local.halt().await;
    }
    drop(ways);
    server.stop().await;
    if let Some(socket) = &socket {
        // The next start makes its own.
        let _ = fs::remove_file(socket);
    }
    told.map(|()| ExitCode::Success)
}

/// Accepts a break of the ledger, if that was asked for by its name, or if the
/// operator says that the database was put back; otherwise says what it is.
async fn settle_break(session: &Session, platform: &Platform, plan: &Plan) -> Result<(), Failure> {
    let found = platform.ledger().refused_since();
    let accepted = plan.accept_break.or(found.filter(|_| plan.restored));
    if let Some(seq) = accepted {
        let actor = Actor::new(ActorKind::User, "local");
        let accepted = platform.accept_break(seq, actor).await;
        return accepted.map_err(|error| {
            let fix = match found {
                Some(found) => format!("the break is at event {found}: --accept-break {found}"),
                None => "leave --accept-break out: nothing is refused".to_owned(),
            };
            Failure::of(ExitCode::Usage, &error, &fix)
        });
    }
    if let Some(seq) = found {
        session.printer.warn(&format!(
            "the ledger is broken at event {seq}: it is shown, and nothing is changed on it; look \
             with `fluffy events verify`, then restore it, or start with --accept-break {seq}"
        ));
    }
    Ok(())
}

/// Begins the node of this machine, if it is to be one; or says why it cannot.
async fn begin(
    folder: &Path,
    socket: Option<&Path>,
    open: &Open,
    node: Option<&Own>,
) -> Option<Result<Local, String>> {
    let (own, socket, nodes) = (node?, socket?, open.nodes?);
    let folder = folder.join("node");
    Some(node::local(&folder, socket, (nodes, open.pin), own).await)
}

/// Says where the server is, and how the first person gets in.
fn tell(
    session: &Session,
    (folder, socket): (&Path, Option<&Path>),
    open: &Open,
    server: &mut Server,
    node: Option<Result<&Local, &str>>,
) -> Result<(), Failure> {
    if let Some(socket) = socket {
        // Only its owner is let in anyway; others need not even ask.
        let mode = fs::Permissions::from_mode(0o600);
        let set = fs::set_permissions(socket, mode);
        set.map_err(|error| failure::unwritable(socket, &error))?;
    }
    let ca = folder.join("ca.pem");
    fs::write(&ca, pem(&open.root)).map_err(|error| failure::unwritable(&ca, &error))?;
    // That custodians are waited for was said already.
    let sealed = open.sealed.as_ref();
    if let Some(error) = sealed.filter(|it| !matches!(it, LoadKeyError::Awaited)) {
        let why = format!("secrets are sealed: the keys cannot be read: {error}");
        session.printer.warn(&why);
    }
    let places = [
        socket.map(|path| format!("unix:{}", path.display())),
        open.api.map(|address| format!("https://{address}")),
        open.operators.map(|address| format!("http://{address}")),
        open.nodes.map(|address| format!("grpc://{address}")),
    ];
    let places: Vec<String> = places.into_iter().flatten().collect();
    if let Some(Ok(node)) = node {
        for less in &node.shortfalls {
            session.printer.warn(less);
        }
    }
    let invite = server.take_invite();
    let code = invite.as_ref().map(|code| code.expose().as_str());
    if session.json() {
        let document = json!({
            "api_version": "v1", "kind": "Started", "listening": places, "ca": ca,
            "pin": open.pin.to_string(), "invite": code,
            "node": node.and_then(Result::ok).map(|it| json!({"id": it.id, "isolation": it.isolation})),
            "routes": edge::known(server),
        });
        if let Some(Err(why)) = node {
            session.printer.warn(&nothing_runs(why));
        }
        return Ok(session.printer.json(&document)?);
    }
    for place in places {
        session.printer.data(&format!("listening on {place}"))?;
    }
    if let Some(code) = code {
        session.printer.data(&format!(
            "\nNobody owns this installation yet. Whoever logs in with this code does:\n\n  \
             {code}\n\n  fluffy context set work --server https://HOST:PORT --ca {}\n  \
             fluffy login --invite\n",
            ca.display()
        ))?;
    }
    match node {
        Some(Ok(node)) => {
            let level = node::words(&node.isolation);
            let text = format!("this machine runs instances as {}: {level}", node.id);
            session.printer.data(&text)?;
        }
        Some(Err(why)) => session.printer.warn(&nothing_runs(why)),
        None => {}
    }
    for route in edge::known(server) {
        let edge::Way {
            address,
            app,
            env,
            process,
            port,
        } = route;
        let line = format!("http://{address} is {app}/{env} {process}:{port}");
        session.printer.data(&line)?;
    }
    session.printer.note("ready; Ctrl-C ends it");
    Ok(())
}

fn nothing_runs(why: &str) -> String {
    format!("no instances run on this machine: {why}")
}

/// Where `fluffy up` listens beside its socket: where it was told to, or where
/// it always does unless that is taken.
fn public(session: &Session, listen: Option<&str>) -> Result<Option<SocketAddr>, Failure> {
    if listen == Some("none") {
        return Ok(None);
    }
    let text = listen.unwrap_or(LISTEN);
    let address: SocketAddr = text.parse().map_err(|_| {
        Report::new(
            ExitCode::Usage,
            format!("`{text}` is not an address and port"),
        )
        .fix("write for example `[::1]:7443`, or `none`")
    })?;
    if listen.is_none() && TcpListener::bind(address).is_err() {
        let why = format!("{address} is taken or not there: only the socket is served");
        session.printer.warn(&why);
        return Ok(None);
    }
    Ok(Some(address))
}

/// Why the doors stay closed.
fn closed(error: &OpenDoorsError) -> Failure {
    let (code, fix) = match error {
        OpenDoorsError::Listen { .. } => (
            ExitCode::Conflict,
            "end what listens there, or choose another address with --listen",
        ),
        OpenDoorsError::Ipv4Pool { .. } => (
            ExitCode::Usage,
            "write ranges such as `--ipv4-pool 203.0.113.0/28`",
        ),
        OpenDoorsError::Custody(ServeDeskError::Keys(_)) => (
            ExitCode::Conflict,
            "prove the shares by `fluffy keys shares verify`, then move these files off this \
             machine; or leave --unseal out",
        ),
        OpenDoorsError::Custody(ServeDeskError::Bind(_)) => (
            ExitCode::Conflict,
            "end the server that has the same folder, or name another by --data",
        ),
        OpenDoorsError::Certificate { .. } | OpenDoorsError::Nodes(_) => (
            ExitCode::Conflict,
            "put the key files back, or say with --keys where they are",
        ),
        OpenDoorsError::Submit(_)
        | OpenDoorsError::Tls(_)
        | OpenDoorsError::Images { .. }
        | OpenDoorsError::Logs { .. } => (
            ExitCode::Transient,
            "check that the folder or database is there, yours, and not in use",
        ),
    };
    Failure::of(code, error, fix)
}

/// How registries are reached; what cannot be used is refused now.
fn registries(args: &RegistryArgs) -> Result<Registries, Failure> {
    let registries = Registries {
        insecure: args.insecure_registries.iter().cloned().collect(),
        internal: args.internal_registries.iter().cloned().collect(),
        mirrors: args.registry_mirrors.clone(),
        credentials: args.registry_auth.as_deref().map(absolute).transpose()?,
        authorities: args.registry_ca.as_deref().map(absolute).transpose()?,
    };
    match registries.check() {
        Ok(()) => Ok(registries),
        Err(error) => Err(Failure::of(ExitCode::Usage, &error, &error.fix())),
    }
}

/// A path that means the same from wherever it is read later.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let absolute = std::path::absolute(path);
    absolute.map_err(|error| failure::unreadable(path, &error).into())
}

/// What is kept of what workloads print.
fn logs(folder: &Path, args: LogArgs) -> Keeping {
    Keeping {
        folder: folder.join("logs"),
        retention: Duration::from_secs(u64::from(args.log_days) * 24 * 3600),
        most: None,
    }
}

/// How hostnames of routes are proven.
fn hostnames(args: &NetworkArgs) -> Hostnames {
    Hostnames {
        dns: Dns::new(args.dns.clone()),
        suffix: args.suffix.clone(),
    }
}

/// The public addresses, if they are to be others than before.
fn ipv4_pool(args: &NetworkArgs) -> Option<Vec<String>> {
    match args.ipv4_pool.as_slice() {
        [] => None,
        [only] if only == "none" => Some(Vec::new()),
        ranges => Some(ranges.to_vec()),
    }
}

/// The names that the server's certificate is for.
fn names(given: &[String]) -> Vec<String> {
    let here = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    given.iter().cloned().chain(here).collect()
}

/// A certificate as files have it.
fn pem(der: &[u8]) -> String {
    let encoded = STANDARD.encode(der);
    let lines: Vec<String> = (encoded.as_bytes().chunks(64))
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect();
    let body = lines.join("\n");
    format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
}

/// Makes sure that no other process serves this data.
pub(super) fn alone(socket: &Path) -> Result<(), Failure> {
    if UnixStream::connect(socket).is_err() {
        return Ok(());
    }
    Err(Report::new(ExitCode::Conflict, "`fluffy up` runs already")
        .why(format!("somebody answers at `{}`", socket.display()))
        .fix("use the one that runs, or end it")
        .into())
}

/// A folder for this user only.
fn private(folder: &Path) -> Result<(), Failure> {
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(folder);
    made.map_err(|error| failure::unwritable(folder, &error).into())
}

/// Tells systemd that we run, if it asked to be told.
pub(super) fn ready() {
    tell_systemd("READY=1\nSTATUS=running");
}

fn tell_systemd(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let say =
        || -> io::Result<usize> { UnixDatagram::unbound()?.send_to(state.as_bytes(), socket) };
    // Without it we run all the same.
    let _ = say();
}

/// Waits for SIGINT or SIGTERM, which are heard from the call on: whoever was
/// told that we run may end us at once, and in good order.
pub(crate) fn until_told() -> impl Future<Output = ()> {
    let heard = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
    async {
        let [Ok(mut interrupt), Ok(mut terminate)] = heard else {
            return;
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}
