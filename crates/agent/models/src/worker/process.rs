//! The worker as a process: its standard input and output are the kernel's.
//!
//! Before a key arrives the process makes itself unreadable to others of the
//! same user. Never touches a variable, an argument or a file.

use std::io;
use std::os::fd::OwnedFd;

use tokio::net::unix::pipe;

use super::{ServeError, serve};

/// Runs the worker on two pipes until its input ends.
///
/// # Errors
/// They are no pipes, or as [`serve`].
pub fn run(input: OwnedFd, output: OwnedFd) -> Result<(), ServeError> {
    hide()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let input = pipe::Receiver::from_owned_fd(input)?;
        let output = pipe::Sender::from_owned_fd(output)?;
        serve(input, output).await
    })
}

/// No core dump, no debugger, no `/proc/PID/mem`.
#[cfg(target_os = "linux")]
fn hide() -> io::Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Elsewhere the sandbox's profile keeps others away.
#[cfg(not(target_os = "linux"))]
fn hide() -> io::Result<()> {
    Ok(())
}
