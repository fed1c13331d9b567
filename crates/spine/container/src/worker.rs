//! The hidden words that make this executable a launcher or an init.
//!
//! Looked at before anything else is set up: both must start with nothing.
//! Neither reads a configuration, a variable or a file of the caller.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use fluffy_sandbox::client::LauncherCommand;

use crate::creation::SOCKET;
use crate::launcher::Begin;
use crate::shape::CONTROL_FOLDER;

/// Runs the worker that these arguments name; nothing if they name none.
#[must_use]
pub fn run(arguments: &[String]) -> Option<ExitCode> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["worker", "container-launcher", socket] => launcher(Path::new(socket), Begin::AtOnce),
        ["worker", "container-launcher", socket, PATIENT] => {
            launcher(Path::new(socket), Begin::WhenAsked)
        }
        ["worker", "container-init"] => init(),
        _ => return None,
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the worker ended");
            ExitCode::FAILURE
        }
    })
}

/// The running executable as a launcher with the engine at this socket.
///
/// # Errors
/// When the executable cannot be found, or the path is no text.
pub fn launcher_command(socket: &Path) -> io::Result<LauncherCommand> {
    let socket = socket.to_str().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(LauncherCommand {
        program: std::env::current_exe()?,
        arguments: ["worker", "container-launcher", socket]
            .map(str::to_owned)
            .to_vec(),
    })
}

/// The word for a launcher that only begins when it is asked something.
const PATIENT: &str = "patient";

/// The same as a process that knows what it may do and waits to be asked: until
/// then it leaves the engine alone.
///
/// # Errors
/// As [`launcher_command`].
pub fn patient_launcher_command(socket: &Path) -> io::Result<LauncherCommand> {
    let mut command = launcher_command(socket)?;
    command.arguments.push(PATIENT.to_owned());
    Ok(command)
}

/// Its standard input is the socket to its client; from then on it has none.
fn launcher(engine: &Path, begin: Begin) -> io::Result<()> {
    // Ctrl-C is for the client; we end with it, and remove the containers.
    let _ = rustix::process::setsid();
    let client: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    drop(null);
    crate::launcher::serve(client, engine, begin)
}

/// The first process of a container finds its launcher where it was mounted.
fn init() -> io::Result<()> {
    let control = UnixStream::connect(Path::new(CONTROL_FOLDER).join(SOCKET))?;
    fluffy_sandbox::foreign::serve_init(control.into())
}
