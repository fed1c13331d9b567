//! `fluffy worker kernel`: the process that drives sessions of one project.
//!
//! Wires the kernel to this user's ledger, policy, layers and sandboxes, and
//! serves its socket until nobody needs it. Decides nothing.

mod make;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use fluffy_config::{Environment, env};
use fluffy_ipc::Listener;
use fluffy_kernel::server::server;

use crate::args::Global;
use crate::failure::Failure;
use crate::session::Session;
use make::Maker;

/// How long a kernel stays when nobody needs it.
const LINGER: Duration = Duration::from_secs(60);

/// Runs the kernel of a project on a socket.
pub(crate) fn run(project: &str, socket: &str) -> ExitCode {
    match serve(Path::new(project), Path::new(socket)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Whoever started it shows this when the socket does not come.
            let _ = writeln!(io::stderr(), "{}", failure.line());
            ExitCode::FAILURE
        }
    }
}

fn serve(project: &Path, socket: &Path) -> Result<(), Failure> {
    let session = Session::new(&Global {
        json: false,
        quiet: true,
        verbose: false,
        project: Some(PathBuf::from(project)),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| crate::failure::no_threads(&error))?;
    runtime.block_on(async {
        let here = session.here()?;
        let maker = Maker::prepare(&session, here).await?;
        let listener = bind(socket)?;
        let launcher = maker.launcher.clone();
        let (served, needed) = server(Arc::new(maker), env!("CARGO_PKG_VERSION"));
        // Without its launcher a kernel can do nothing: clients start another.
        let no_more = async {
            tokio::select! {
                () = needed.no_more(linger()) => {}
                () = launcher.gone() => {}
            }
        };
        let ended = served.serve(listener, no_more).await;
        ended.map_err(|error| {
            let fix = "run the command again; it starts another one";
            Failure::of(fluffy_report::ExitCode::Internal, &error, fix)
        })
    })
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
