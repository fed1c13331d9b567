//! What needs the system itself; unsafe code only here.
//!
//! Signals as bytes, waiting for descriptors and ends, killing, and what
//! happens in a child before it becomes its program. Decides nothing.

#![expect(unsafe_code, reason = "these calls have no safe form")]

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

use libc::c_int;

/// The signals that ask this process to end, as bytes on a socket.
#[derive(Debug)]
pub(crate) struct Signals(pub(crate) UnixStream);

impl Signals {
    /// Blocks them, and lets a thread wait for them.
    pub(crate) fn take() -> io::Result<Self> {
        let mut set = empty_set();
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            // SAFETY: the set is initialised and the number is a signal's.
            unsafe { libc::sigaddset(&raw mut set, signal) };
        }
        set_mask(libc::SIG_BLOCK, &set)?;
        let (ours, mut theirs) = UnixStream::pair()?;
        std::thread::Builder::new().spawn(move || {
            loop {
                let mut signal: c_int = 0;
                // SAFETY: both point to values that live as long as the call.
                let code = unsafe { libc::sigwait(&raw const set, &raw mut signal) };
                let byte = u8::try_from(signal).unwrap_or(0);
                if code == 0 && theirs.write_all(&[byte]).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self(ours))
    }

    /// The signal that has come.
    pub(crate) fn read(&mut self) -> c_int {
        let mut byte = [0];
        let read = self.0.read_exact(&mut byte);
        read.map_or(libc::SIGTERM, |()| c_int::from(byte[0]))
    }

    /// Whether a signal comes within this time.
    pub(crate) fn within(&self, time: Duration) -> bool {
        let [signal] = wait([self.0.as_fd()], time);
        signal
    }
}

/// Waits until one of these can be read, or the time is over; a call that is
/// interrupted or fails counts as time that is over.
pub(crate) fn wait<const N: usize>(descriptors: [BorrowedFd<'_>; N], time: Duration) -> [bool; N] {
    let mut polled = descriptors.map(|descriptor| libc::pollfd {
        fd: descriptor.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    // Rounded up, so that the time is over on waking.
    let millis = c_int::try_from(time.as_millis().saturating_add(1)).unwrap_or(c_int::MAX);
    let count = libc::nfds_t::try_from(N).unwrap_or(0);
    // SAFETY: the array has that many elements and outlives the call.
    unsafe { libc::poll(polled.as_mut_ptr(), count, millis) };
    polled.map(|polled| polled.revents != 0)
}

/// Sends a signal to a child that was not yet waited for.
pub(crate) fn signal(child: &Child, signal: c_int) {
    if let Ok(process) = libc::pid_t::try_from(child.id()) {
        // SAFETY: makes no use of memory; the number is still this child's.
        unsafe { libc::kill(process, signal) };
    }
}

/// Lets a command run in its own process group, with no signal blocked, and
/// die when this thread dies.
pub(crate) fn bind(command: &mut Command) {
    command.process_group(0);
    let none = empty_set();
    let parent = std::process::id();
    let prepare = move || {
        set_mask(libc::SIG_SETMASK, &none)?;
        #[cfg(target_os = "linux")]
        // SAFETY: takes numbers only.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // Where the parent died before that, nobody will send the signal.
        if std::os::unix::process::parent_id() != parent {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    };
    // SAFETY: only calls that are allowed between fork and exec, and neither
    // allocates nor locks.
    unsafe { command.pre_exec(prepare) };
}

fn set_mask(how: c_int, set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the set is initialised; the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(how, set, std::ptr::null_mut()) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set it is given.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}
