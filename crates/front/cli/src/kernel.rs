//! `fluffy worker bootstrap` and `fluffy worker kernel`: who keeps the kernel
//! of a project running, and the process that drives its sessions.
//!
//! Wires the kernel to this user's ledger, policy, layers and sandboxes, and
//! serves its socket until nobody needs it. Decides nothing.

mod make;
mod walls;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fluffy_bootstrap::heartbeat::Rhythm;
use fluffy_bootstrap::restart::Allowance;
use fluffy_config::{Environment, ProcessEngine, env};
use fluffy_egress::outside::{self, Outside};
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

/// How long a kernel may take to end when it was told to.
const GRACE: Duration = Duration::from_secs(5);

/// The variable of `sandbox.engine`.
pub(crate) const ENGINE: &str = "FLUFFY_SANDBOX_ENGINE";

/// A crash: the bootstrap tries again.
const FAILED: u8 = 1;

/// What it was given is of no use: trying again would not help.
const UNUSABLE: u8 = 2;

/// Keeps a launcher and the kernel of a project running.
pub(crate) fn bootstrap(configuration: &str, project: &str, socket: &str) -> ExitCode {
    let own = match std::env::current_exe() {
        Ok(own) => own.into_os_string(),
        Err(error) => return ended(&format!("cannot find this program: {error}"), FAILED),
    };
    let words = |words: &[&str]| {
        let words = words.iter().map(OsString::from);
        std::iter::once(own.clone()).chain(words).collect()
    };
    // A variable is over the file, which it therefore does not look at.
    let key = std::env::var(ENGINE).unwrap_or_default();
    let names = ProcessEngine::ALL.map(|(name, _)| name);
    let engines = names
        .iter()
        .filter(|name| !names.contains(&key.as_str()) || **name == key);
    let engines = engines.map(|name| fluffy_bootstrap::Engine {
        name: (*name).to_owned(),
        launcher: words(&["worker", "launcher"]),
    });
    fluffy_bootstrap::run(&fluffy_bootstrap::Bootstrap {
        configuration: PathBuf::from(configuration),
        engines: engines.collect(),
        kernel: words(&["worker", "kernel", project, socket]),
        environment: std::env::vars_os().collect(),
        rhythm: Rhythm::default(),
        allowance: Allowance::default(),
        grace: GRACE,
    })
}

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

/// Runs the egress process of a kernel; its socket is its standard input.
pub(crate) fn egress() -> ExitCode {
    let done = || -> Result<(), Box<dyn std::error::Error>> {
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        walls::of_egress()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(runtime.block_on(outside::serve(socket))?)
    };
    match done() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ended(&fluffy_kernel::agent::explain(&*error), FAILED),
    }
}

/// Starts the egress process beside the kernel, with nothing but its socket.
fn start_egress() -> io::Result<OwnedFd> {
    let (ours, theirs) = outside::pair()?;
    std::process::Command::new(std::env::current_exe()?)
        .args(outside::ARGUMENTS)
        .env_clear()
        .process_group(0)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .spawn()?;
    Ok(ours)
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
    let outside = start_egress().map_err(|error| {
        let fix = "check that this user may start another process";
        Failure::of(fluffy_report::ExitCode::Internal, &error, fix)
    })?;
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
            tools,
        };
        let maker = Maker::prepare(&session, here, engine, connected).await?;
        let listener = bind(socket)?;
        let (launcher, outside) = (maker.launcher.clone(), Arc::clone(&maker.network));
        let (served, needed) = server(Arc::new(maker), env!("CARGO_PKG_VERSION"));
        let why = Arc::new(Mutex::new(Ended::NoMoreNeeded));
        let set = |ended, why: &Mutex<Ended>| {
            *why.lock().unwrap_or_else(PoisonError::into_inner) = ended;
        };
        let no_more = {
            let why = Arc::clone(&why);
            async move {
                tokio::select! {
                    () = needed.no_more(linger()) => {}
                    _ = unwatched => {}
                    () = launcher.gone() => set(Ended::LauncherLost, &why),
                    () = outside.gone() => set(Ended::EgressLost, &why),
                }
            }
        };
        let ended = served.serve(listener, no_more).await;
        ended.map_err(|error| {
            let fix = "run the command again; it starts another one";
            Failure::of(fluffy_report::ExitCode::Internal, &error, fix)
        })?;
        Ok(*why.lock().unwrap_or_else(PoisonError::into_inner))
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
