//! Why there is no kernel, or no answer from it, as reports.

use fluffy_ipc::{CallError, ConnectError, ErrorCode};
use fluffy_report::{ExitCode, Report};

use super::KernelPlace;

/// There is no project around the folder.
pub(super) fn no_project() -> Report {
    Report::new(ExitCode::NotFound, "this folder is in no project")
        .why("the agent works on a folder with `.git` or `.fluffy` in it")
        .fix("run it inside a project, or make one with `fluffy init`")
}

/// Nobody serves the socket and nobody could be started.
pub(super) fn not_started(place: &KernelPlace) -> Report {
    let what = format!("no kernel runs for `{}`", place.project.display());
    Report::new(ExitCode::Transient, what)
        .code("no_kernel")
        .why(format!("nobody serves `{}`", place.socket.display()))
        .fix("start the kernel of this project, then run the command again")
}

/// The kernel cannot be reached.
pub(super) fn connect(error: &ConnectError) -> Report {
    let exit = match error {
        ConnectError::Version { .. } => ExitCode::Conflict,
        error if error.is_retryable() => ExitCode::Transient,
        _ => ExitCode::Failure,
    };
    Report::from_error(exit, error)
        .code("no_kernel")
        .fix(error.hint())
}

/// The kernel did not do what it was asked to do.
pub(super) fn call(error: &CallError) -> Report {
    let (exit, fix) = match error.code() {
        Some(ErrorCode::Denied) => (
            ExitCode::Denied,
            "`fluffy audit log` shows which rule decided",
        ),
        Some(ErrorCode::NotFound) => (
            ExitCode::NotFound,
            "`fluffy session list` shows what there is",
        ),
        Some(ErrorCode::Conflict) => (
            ExitCode::Conflict,
            "wait until the session rests, then ask again",
        ),
        Some(ErrorCode::InvalidParams) => (
            ExitCode::Usage,
            "put right what is said above, then run the command again",
        ),
        Some(ErrorCode::UnknownMethod) => (
            ExitCode::Usage,
            "the kernel that runs is of another version: end its sessions, then try again",
        ),
        Some(ErrorCode::Unavailable | ErrorCode::Timeout | ErrorCode::ShuttingDown) => {
            (ExitCode::Transient, "try again in a moment")
        }
        Some(_) => (
            ExitCode::Internal,
            "please report this, with what the kernel says above",
        ),
        None if error.is_retryable() => (
            ExitCode::Transient,
            "look with `fluffy session list` whether it happened, then try again",
        ),
        None => (
            ExitCode::Internal,
            "restart the kernel with this version of fluffy",
        ),
    };
    Report::from_error(exit, error).fix(fix)
}
