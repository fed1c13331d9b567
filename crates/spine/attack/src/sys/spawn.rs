//! What a subject's starter does between fork and exec.

use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};

use super::terminal::take_as_controlling;

/// Lets the command inherit one descriptor, as a careless parent would.
pub(crate) fn inherit(command: &mut Command, descriptor: RawFd) {
    let keep = move || {
        // SAFETY: the caller keeps the descriptor open until after the spawn.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        fcntl_setfd(descriptor, FdFlags::empty())?;
        Ok(())
    };
    // SAFETY: one fcntl call, which is safe between fork and exec.
    unsafe { command.pre_exec(keep) };
}

/// Makes the command a session leader at the terminal on its input.
pub(crate) fn lead_session_at_input(command: &mut Command) {
    let lead = || {
        rustix::process::setsid()?;
        take_as_controlling(rustix::stdio::stdin())?;
        Ok(())
    };
    // SAFETY: two system calls, which are safe between fork and exec.
    unsafe { command.pre_exec(lead) };
}
