//! System calls that no safe crate offers, since nobody should need them.
//!
//! Each function is safe to call: its pointers lead to memory it owns or to
//! nothing at all. Must never let a caller pass an address. By topic:
//! `kernel`, `keyring`, `memory`, `process`, `spawn`, `terminal`.
#![allow(
    unsafe_code,
    reason = "attacks are raw system calls; every block says why it cannot hurt us"
)]

pub(crate) mod kernel;
pub(crate) mod keyring;
pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod spawn;
pub(crate) mod terminal;

use rustix::io::Errno;

/// The error number of the call that has just failed.
fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Turns the answer of a system call into a result.
fn checked(answer: libc::c_long) -> Result<libc::c_long, Errno> {
    if answer == -1 {
        Err(last_errno())
    } else {
        Ok(answer)
    }
}

/// Takes ownership of a descriptor that a system call has just made.
fn owned(answer: libc::c_long) -> Result<std::os::fd::OwnedFd, Errno> {
    use std::os::fd::FromRawFd;
    let number = i32::try_from(checked(answer)?).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel has just returned this descriptor to us, so nobody
    // else owns it.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(number) })
}
