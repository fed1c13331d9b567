//! `fluffy worker egress`: the process that reaches the network for a kernel.
//!
//! Started by the kernel before it walls itself in. What it does is in
//! `fluffy_egress::outside`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{ExitCode, Stdio};

use fluffy_egress::outside;

use super::{FAILED, ended};

/// Runs the egress process of a kernel; its socket is its standard input.
pub(crate) fn run() -> ExitCode {
    let done = || -> Result<(), Box<dyn std::error::Error>> {
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        super::walls::of_egress()?;
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
pub(super) fn start() -> io::Result<OwnedFd> {
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
