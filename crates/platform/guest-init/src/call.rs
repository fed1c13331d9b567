//! The system calls that no crate wraps.
//!
//! The only file here with `unsafe`. Init has one thread, so a forked child
//! may go on like any other process.

#![expect(unsafe_code, reason = "system calls without a safe wrapper")]

use std::ffi::{CString, c_int, c_long};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use rustix::process::{Pid, Signal};

/// Which side of a fork this is.
pub(crate) enum Forked {
    /// The new process.
    Child,
    /// The old one, with the new one's id.
    Parent(Pid),
}

/// Forks. Init has one thread, so nothing is locked in the child for ever.
pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: the process has one thread; the child has its own copy of all.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(
            Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?,
        )),
    }
}

/// Ends this process without running anything that its parent registered.
pub(crate) fn exit_now(code: c_int) -> ! {
    // SAFETY: takes no memory and does not return.
    unsafe { libc::_exit(code) }
}

/// Takes over a descriptor that the maker of this process left open for it.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: only looks at the descriptor, which may well be closed.
    if number < 3 || unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: it is open, and is taken once, at the start, by its number.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Blocks signals and gives a descriptor that they are read from.
pub(crate) fn signal_descriptor(signals: &[c_int]) -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by `sigemptyset` and outlives the calls;
    // the descriptor is new.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) == -1 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// What every program expects: nothing ignored, nothing blocked.
pub(crate) fn plain_signals() {
    for signal in 1..=64 {
        // SAFETY: default actions need no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: the set is initialised by `sigemptyset` and outlives the call.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// Sends a signal to every process but this one: only as the first of its
/// namespace, whose others these are.
pub(crate) fn signal_everyone(signal: Signal) {
    if std::process::id() == 1 {
        // SAFETY: takes no memory. There may be nobody.
        unsafe { libc::kill(-1, signal.as_raw()) };
    }
}

/// Becomes somebody else, for good.
pub(crate) fn become_user(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    // SAFETY: the array lives until the call returns and its length is given.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
    // SAFETY: takes no memory; the process has one thread.
    check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })
}

/// Puts a compiled filter of system calls over this process, for good.
pub(crate) fn install_filter(program: &[u8]) -> io::Result<()> {
    let instructions: Vec<libc::sock_filter> = program
        .chunks_exact(size_of::<libc::sock_filter>())
        .filter_map(|bytes| {
            let &[c0, c1, jt, jf, k0, k1, k2, k3] = bytes else {
                return None;
            };
            Some(libc::sock_filter {
                code: u16::from_ne_bytes([c0, c1]),
                jt,
                jf,
                k: u32::from_ne_bytes([k0, k1, k2, k3]),
            })
        })
        .collect();
    let program = libc::sock_fprog {
        len: u16::try_from(instructions.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: instructions.as_ptr().cast_mut(),
    };
    // SAFETY: `program` names that many instructions, which live until the
    // call returns; the kernel only reads them.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    })
}

/// Marks every descriptor from `first` on to be closed by `execve`.
pub(crate) fn close_at_exec() -> io::Result<()> {
    // SAFETY: only changes flags of descriptors; none is closed here.
    check(unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    })
}

/// Becomes another program; returns only if that failed.
pub(crate) fn execute(program: &CString, argv: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
        let texts = texts.iter().map(|text| text.as_ptr());
        texts.chain([std::ptr::null()]).collect()
    };
    let (argv, environment) = (pointers(argv), pointers(environment));
    // SAFETY: both arrays end with a null pointer and outlive the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

fn check(result: c_long) -> io::Result<()> {
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
