//! `fluffy worker kernel`: the process that drives sessions of one project.
//!
//! Wires the kernel to this user's ledger, policy, layers and sandboxes, and
//! serves its socket until nobody needs it. Decides nothing. Next: `bootstrap`
//! for who starts it, `egress`, `containers` and `walls` for what it does first,
//! `make`.

pub(crate) mod bootstrap;
mod containers;
pub(crate) mod egress;
mod make;
pub(crate) mod plugins;
mod walls;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use fluffy_config::{Environment, ProcessEngine, env};
use fluffy_egress::Outside;
use fluffy_ipc::Listener;
use fluffy_kernel::server::server;
use rustix::fs::FileType;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::args::Global;
use crate::command::sandbox::ground;
use crate::failure::Failure;
use crate::session::Session;
use make::{Connected, Maker};

/// How long a kernel stays when nobody needs it.
const LINGER: Duration = Duration::from_secs(60);

/// A crash: the bootstrap tries again.
const FAILED: u8 = 1;

/// What it was given is of no use: trying again would not help.
const UNUSABLE: u8 = 2;

/// Runs the kernel of a project on a socket, as its bootstrap starts it.
pub(crate) fn run(project: &str, socket: &str, engine: &str) -> ExitCode {
    let Some(engine) = ProcessEngine::named(engine) else {
        return ended("there is no such engine", UNUSABLE);
    };
    match serve(Path::new(project), Path::new(socket), engine) {
        Ok(Ended::NoMoreNeeded) => ExitCode::SUCCESS,
        Ok(Ended::LauncherLost) => ended("the launcher is gone", FAILED),
        Ok(Ended::EgressLost) => ended("the egress process is gone", FAILED),
        // Whoever started it shows this when the socket does not come.
        Err(failure) => ended(&failure.line(), UNUSABLE),
    }
}

/// Says why it ends, to the log.
fn ended(why: &str, code: u8) -> ExitCode {
    let _ = writeln!(io::stderr(), "{why}");
    ExitCode::from(code)
}

/// Why a kernel ended by itself.
#[derive(Debug, Clone, Copy)]
enum Ended {
    /// Nobody needs it, or its bootstrap is gone.
    NoMoreNeeded,
    /// Without its launcher a kernel can do nothing.
    LauncherLost,
    /// Without its egress process it reaches no model.
    EgressLost,
}

fn serve(project: &Path, socket: &Path, engine: ProcessEngine) -> Result<Ended, Failure> {
    let lines = Lines::take().map_err(|error| {
        let fix = "a kernel is started by its bootstrap: run `fluffy \"<task>\"`";
        Failure::of(fluffy_report::ExitCode::Usage, &error, fix)
    })?;
    let session = Session::new(&Global {
        json: false,
        quiet: true,
        verbose: false,
        project: Some(PathBuf::from(project)),
    });
    let here = session.here()?;
    let root = here.paths.project_root.clone().unwrap_or_default();
    let root = root
        .canonicalize()
        .map_err(|error| crate::failure::no_folder(&root, &error))?;
    let tools = ground::tools(here, &root);
    let outside = egress::start().map_err(|error| {
        let fix = "check that this user may start another process";
        Failure::of(fluffy_report::ExitCode::Internal, &error, fix)
    })?;
    let containers = containers::start();
    walls::put_up(here, &root)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| crate::failure::no_threads(&error))?;
    runtime.block_on(async {
        let unwatched = tokio::spawn(answer_pings(lines.pings));
        let outside = Outside::over(outside).map_err(|error| {
            let fix = "run the command again";
            Failure::of(fluffy_report::ExitCode::Internal, &error, fix)
        })?;
        let connected = Connected {
            launcher: lines.launcher,
            outside: Arc::new(outside),
            containers,
            tools,
        };
        let maker = Maker::prepare(&session, here, engine, connected).await?;
        let listener = bind(socket)?;
        let (launcher, outside) = (maker.launcher.clone(), Arc::clone(&maker.network));
        let containers = Arc::clone(&maker.containers);
        let plugins = Arc::clone(&maker.plugins);
        let (served, needed) = server(Arc::new(maker), env!("CARGO_PKG_VERSION"));
        let no_more = async {
            tokio::select! {
                () = needed.no_more(linger()) => {}
                _ = unwatched => {}
                () = launcher.gone() => {}
                () = outside.gone() => {}
                () = containers.lost() => {}
            }
        };
        let ended = served.serve(listener, no_more).await;
        plugins.stop_all().await;
        ended.map_err(|error| {
            let fix = "run the command again; it starts another one";
            Failure::of(fluffy_report::ExitCode::Internal, &error, fix)
        })?;
        let is_lost = launcher.is_gone() || containers.is_lost();
        Ok(match (is_lost, outside.is_gone()) {
            (true, _) => Ended::LauncherLost,
            (_, true) => Ended::EgressLost,
            (false, false) => Ended::NoMoreNeeded,
        })
    })
}

/// What a bootstrap gives its kernel.
struct Lines {
    /// The socket to the launcher.
    launcher: OwnedFd,
    /// Where the bootstrap pings.
    pings: UnixStream,
}

impl Lines {
    /// Takes them from the standard input and output, which then are nothing.
    fn take() -> io::Result<Self> {
        let is_socket = |descriptor: BorrowedFd<'_>| {
            let kind = rustix::fs::fstat(descriptor).map(|found| found.st_mode);
            matches!(kind.map(FileType::from_raw_mode), Ok(FileType::Socket))
        };
        let (input, output) = (io::stdin(), io::stdout());
        if !is_socket(input.as_fd()) || !is_socket(output.as_fd()) {
            let why = "its standard input and output are not its bootstrap's";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let launcher = input.as_fd().try_clone_to_owned()?;
        let pings = UnixStream::from(output.as_fd().try_clone_to_owned()?);
        let null = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        pings.set_nonblocking(true)?;
        Ok(Self { launcher, pings })
    }
}

/// Sends every byte back until the bootstrap is gone. On the kernel's own
/// threads, so that a kernel which hangs does not answer.
async fn answer_pings(pings: UnixStream) {
    let Ok(mut pings) = tokio::net::UnixStream::from_std(pings) else {
        return;
    };
    let mut bytes = [0; 64];
    while let Ok(count @ 1..) = pings.read(&mut bytes).await {
        let Some(heard) = bytes.get(..count) else {
            return;
        };
        if pings.write_all(heard).await.is_err() {
            return;
        }
    }
}

fn linger() -> Duration {
    let environment = Environment::of_process();
    let set = environment.get(env::FLUFFY_KERNEL_LINGER);
    let seconds = set.and_then(|text| text.to_str()?.parse().ok());
    seconds.map_or(LINGER, Duration::from_secs)
}

fn bind(socket: &Path) -> Result<Listener, Failure> {
    if let Some(run) = socket.parent().and_then(Path::parent) {
        // The listener makes the last one itself, for its owner only.
        let _ = std::fs::create_dir_all(run);
    }
    Listener::bind(socket).map_err(|error| {
        let fix = "check that the state directory is yours, and that no other kernel runs";
        Failure::of(fluffy_report::ExitCode::Conflict, &error, fix)
    })
}
