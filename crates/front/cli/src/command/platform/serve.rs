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

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fluffy_config::env;
use fluffy_ledger::{LedgerOptions, PostgresAddress, Signing};
use fluffy_report::{ExitCode, Report};
use fluffy_server::dns::Dns;
use fluffy_server::doors::{Doors, Open, OpenDoorsError};
use fluffy_server::hostnames::Hostnames;
use fluffy_server::loops::lease::Timing;
use fluffy_server::platform::{Founder, Storage};
use fluffy_server::server::{Options, Server};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::target;
use crate::args::{NetworkArgs, ServerArgs, UpArgs};
use crate::command::Outcome;
use crate::failure::{self, Failure};
use crate::session::Session;

/// Where `fluffy up` listens beside its socket, if it can.
const LISTEN: &str = "[::1]:7443";

/// What is to run.
struct Plan {
    storage: Storage,
    /// Whether the database was put back to an earlier point.
    restored: bool,
    founder: Founder,
    /// Where we leave what people need to trust us.
    folder: PathBuf,
    doors: Doors,
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
    let plan = Plan {
        storage: Storage::Directory(folder.clone()),
        restored: false,
        founder: Founder::Local,
        doors: Doors {
            keys: folder.join("keys"),
            api: public(session, args.listen.as_deref())?,
            nodes: args.listen_nodes,
            socket: Some(socket),
            names: names(&[]),
            certificate: Some(folder.join("certificate")),
            hostnames: hostnames(&args.network),
            ipv4_pool: ipv4_pool(&args.network),
            insecure_registries: args.insecure_registries.iter().cloned().collect(),
            ..Doors::default()
        },
        folder,
    };
    work(run(session, plan))
}

/// Runs a server until it is told to end.
pub(crate) fn server(session: &Session, args: &ServerArgs) -> Outcome {
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
        Some(url) => Storage::Database(Box::new(address(&url)?)),
        None => Storage::Directory(folder.clone()),
    };
    let plan = Plan {
        storage,
        restored: args.restored,
        founder: Founder::Invited,
        doors: Doors {
            keys: args.keys.clone().unwrap_or_else(|| folder.join("keys")),
            api: Some(args.listen),
            nodes: Some(args.listen_nodes),
            operators: args.listen_operators,
            names: names(&args.names),
            advertise: args.advertise.clone(),
            certificate: Some(folder.join("certificate")),
            hostnames: hostnames(&args.network),
            ipv4_pool: ipv4_pool(&args.network),
            insecure_registries: args.insecure_registries.iter().cloned().collect(),
            ..Doors::default()
        },
        folder,
    };
    work(run(session, plan))
}

/// The address of a database; it may hold a password, so it is not shown.
pub(super) fn address(url: &str) -> Result<PostgresAddress, Report> {
    url.parse().map_err(|_| {
        Report::new(ExitCode::Usage, "the address of the database is none")
            .fix("write postgres://USER:PASSWORD@HOST/DATABASE in FLUFFY_DATABASE")
    })
}

/// Runs with every core of the machine.
fn work(server: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| failure::no_threads(&error))?;
    runtime.block_on(server)
}

/// Has what goes wrong in the background written where operators look.
fn log() {
    let log = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(io::stderr)
        .with_ansi(false);
    // Whoever was first keeps it.
    let _ = log.try_init();
}

async fn run(session: &Session, plan: Plan) -> Outcome {
    log();
    let options = Options {
        storage: plan.storage,
        ledger: LedgerOptions {
            // Apart from the ledger: who can rewrite one can't sign the other.
            signing: Some(Signing::in_directory(&plan.folder.join("notary"))),
            ..LedgerOptions::default()
        },
        founder: plan.founder,
        timing: Timing::default(),
    };
    let mut server = Server::start(options).await.map_err(|error| {
        let fix = "check that the folder or database is there, yours, and not in use";
        Failure::of(ExitCode::Transient, &error, fix)
    })?;
    if plan.restored {
        server.platform().restored().await.map_err(|error| {
            let fix = "check that the database can be written";
            Failure::of(ExitCode::Transient, &error, fix)
        })?;
    }
    let socket = plan.doors.socket.clone();
    let opened = server.open(plan.doors).await;
    let opened = opened.map_err(|error| closed(&error));
    let told = match opened {
        Ok(open) => tell(session, &plan.folder, socket.as_deref(), &open, &mut server),
        Err(failure) => Err(failure),
    };
    if told.is_ok() {
        ready();
        until_told().await;
    }
    server.stop().await;
    if let Some(socket) = &socket {
        // The next start makes its own.
        let _ = fs::remove_file(socket);
    }
    told.map(|()| ExitCode::Success)
}

/// Says where the server is, and how the first person gets in.
fn tell(
    session: &Session,
    folder: &Path,
    socket: Option<&Path>,
    open: &Open,
    server: &mut Server,
) -> Result<(), Failure> {
    if let Some(socket) = socket {
        // Only its owner is let in anyway; others need not even ask.
        let mode = fs::Permissions::from_mode(0o600);
        let set = fs::set_permissions(socket, mode);
        set.map_err(|error| failure::unwritable(socket, &error))?;
    }
    let ca = folder.join("ca.pem");
    fs::write(&ca, pem(&open.root)).map_err(|error| failure::unwritable(&ca, &error))?;
    if let Some(error) = &open.sealed {
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
    let invite = server.take_invite();
    let code = invite.as_ref().map(|code| code.expose().as_str());
    if session.json() {
        let document = json!({
            "api_version": "v1", "kind": "Started", "listening": places, "ca": ca,
            "pin": open.pin.to_string(), "invite": code,
        });
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
    session.printer.note("ready; Ctrl-C ends it");
    Ok(())
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
        OpenDoorsError::Certificate { .. } | OpenDoorsError::Nodes(_) => (
            ExitCode::Conflict,
            "put the key files back, or say with --keys where they are",
        ),
        OpenDoorsError::Submit(_) | OpenDoorsError::Tls(_) => (
            ExitCode::Transient,
            "check that the folder or database is there, yours, and not in use",
        ),
    };
    Failure::of(code, error, fix)
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

/// Tells systemd, if it asked to be told.
fn ready() {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let say = || -> io::Result<usize> { UnixDatagram::unbound()?.send_to(b"READY=1", socket) };
    // Without it we run all the same.
    let _ = say();
}

async fn until_told() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        return;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
