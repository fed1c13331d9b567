//! A shim seen from outside, by an agent that may not be the one who started
//! it: a process by its number and its start, so that no other is taken for it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::process::{Pid, PidfdFlags};

use crate::call;

/// When a process started, as the kernel counts: field 22 of its `stat`.
/// Nothing if it is gone, or only waits to be collected; also if that cannot
/// be seen.
#[must_use]
pub fn started(pid: u32) -> Option<u64> {
    start_of(pid).ok().flatten()
}

/// The same, for whoever must not take one for gone that is only not seen.
///
/// # Errors
/// When the kernel does not say: there may be no descriptor left.
pub fn start_of(pid: u32) -> io::Result<Option<u64>> {
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => Ok(start_in(&stat)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // It went while it was read.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(error) => Err(error),
    }
}

fn start_in(stat: &[u8]) -> Option<u64> {
    // A name may hold anything, also brackets and spaces.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = String::from_utf8_lossy(stat.get(end + 2..)?).into_owned();
    let mut fields = rest.split_ascii_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.nth(18)?.parse().ok(),
    }
}

/// Device and inode of a process's program.
#[must_use]
pub fn program(pid: u32) -> Option<(u64, u64)> {
    let found = fs::metadata(format!("/proc/{pid}/exe")).ok()?;
    Some((found.dev(), found.ino()))
}

/// Which boot of this machine this is.
///
/// # Errors
/// When the kernel does not say.
pub fn host_boot() -> io::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
}

/// Waits until the process that started then has ended; at once if it has.
///
/// # Errors
/// When it cannot be watched.
pub async fn ended(pid: u32, start: u64) -> io::Result<()> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let number = number.ok_or(io::ErrorKind::InvalidInput)?;
    let descriptor = match rustix::process::pidfd_open(number, PidfdFlags::NONBLOCK) {
        Ok(descriptor) => descriptor,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    // Only now: what is open stays the same process.
    if start_of(pid)? != Some(start) {
        return Ok(());
    }
    call::register(descriptor)?.readable().await.map(drop)
}

/// Ends the process that started then, if it still runs.
///
/// # Errors
/// When the kernel refuses.
pub fn kill(pid: u32, start: u64) -> io::Result<()> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let number = number.ok_or(io::ErrorKind::InvalidInput)?;
    let descriptor = match rustix::process::pidfd_open(number, PidfdFlags::empty()) {
        Ok(descriptor) => descriptor,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if start_of(pid)? != Some(start) {
        return Ok(());
    }
    match rustix::process::pidfd_send_signal(&descriptor, rustix::process::Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
