//! Processes and what they may do to each other.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

use super::{checked, owned};

/// Runs `child` in a new process and returns its number.
///
/// A worker has one thread, so its child may do anything it could.
pub(crate) fn fork(child: impl FnOnce() -> i32) -> Result<i32, Errno> {
    // SAFETY: one thread, so no lock can be left taken in the child.
    let answer = unsafe { libc::fork() };
    checked(answer.into())?;
    if answer == 0 {
        let code = child();
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(code) };
    }
    Ok(answer)
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// With this code.
    Code(i32),
    /// By this signal, with or without a core file.
    Signal {
        /// Its number.
        signal: i32,
        /// Whether the kernel wrote a core file.
        core: bool,
    },
}

/// Waits for a child.
pub(crate) fn wait(child: i32) -> Result<End, Errno> {
    let mut status = 0;
    // SAFETY: writes the status of our own child.
    checked(unsafe { libc::waitpid(child, &raw mut status, 0) }.into())?;
    Ok(if libc::WIFSIGNALED(status) {
        End::Signal {
            signal: libc::WTERMSIG(status),
            core: libc::WCOREDUMP(status),
        }
    } else {
        End::Code(libc::WEXITSTATUS(status))
    })
}

/// Runs `child` in a new process and waits for it.
pub(crate) fn in_child(child: impl FnOnce() -> i32) -> Result<End, Errno> {
    wait(fork(child)?)
}

/// The first bytes of an open file that this process may not even have.
pub(crate) fn read_descriptor(descriptor: i32) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0_u8; 4096];
    // SAFETY: the kernel checks the descriptor and writes no more than the
    // buffer holds.
    let length = unsafe { libc::pread(descriptor, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    bytes.truncate(usize::try_from(length).map_err(|_| super::last_errno())?);
    Ok(bytes)
}

/// Ends a child that must not stay.
pub(crate) fn kill_child(child: i32) {
    // SAFETY: a number that `fork` returned and `wait` has not yet taken.
    unsafe { libc::kill(child, libc::SIGKILL) };
}

/// Moves into new namespaces.
pub(crate) fn unshare(flags: i32) -> Result<(), Errno> {
    // SAFETY: takes flags only; the flags used share no memory away.
    checked(unsafe { libc::unshare(flags) }.into())?;
    Ok(())
}

/// Starts a process in new namespaces by `clone3`, and ends it at once.
pub(crate) fn clone3(flags: i32) -> Result<(), Errno> {
    let signal = u64::try_from(libc::SIGCHLD).unwrap_or_default();
    let flags = u64::from(flags.cast_unsigned());
    // flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls
    let arguments: [u64; 8] = [flags, 0, 0, 0, signal, 0, 0, 0];
    // SAFETY: no stack and no shared memory, so this is a plain fork.
    let child = checked(unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), 64) })?;
    if child == 0 {
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let child = i32::try_from(child).map_err(|_| Errno::RANGE)?;
    wait(child)?;
    Ok(())
}

/// Moves into a namespace of somebody else.
pub(crate) fn setns(namespace: &OwnedFd) -> Result<(), Errno> {
    // SAFETY: takes a descriptor and no type.
    checked(unsafe { libc::setns(namespace.as_raw_fd(), 0) }.into())?;
    Ok(())
}

/// Attaches to a process as a debugger would, and lets go again.
pub(crate) fn ptrace_seize(process: i32) -> Result<(), Errno> {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: PTRACE_SEIZE takes no memory and does not stop the process.
    checked(unsafe { libc::ptrace(libc::PTRACE_SEIZE, process, none, none) })?;
    // SAFETY: lets go of what was attached above.
    unsafe { libc::ptrace(libc::PTRACE_DETACH, process, none, none) };
    Ok(())
}

/// Reads a word of a child's memory, at an address that is ours as well.
pub(crate) fn read_memory_of(child: i32, word: &u64) -> Result<u64, Errno> {
    let mut copy = 0_u64;
    let local = libc::iovec {
        iov_base: (&raw mut copy).cast(),
        iov_len: 8,
    };
    let remote = libc::iovec {
        iov_base: std::ptr::from_ref(word).cast_mut().cast(),
        iov_len: 8,
    };
    // SAFETY: writes eight bytes into `copy`; the remote side is only read.
    let read =
        unsafe { libc::process_vm_readv(child, &raw const local, 1, &raw const remote, 1, 0) };
    if read == -1 {
        return Err(super::last_errno());
    }
    Ok(copy)
}

/// Opens a handle on a process.
pub(crate) fn pidfd_open(process: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: takes numbers only.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) })
}

/// Copies a descriptor out of another process.
pub(crate) fn pidfd_getfd(process: &OwnedFd, descriptor: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: takes numbers only.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0) })
}

/// Sends a signal.
pub(crate) fn signal(process: i32, signal: i32) -> Result<(), Errno> {
    if process <= 1 {
        // Zero and below mean groups, one means everybody's parent.
        return Err(Errno::INVAL);
    }
    // SAFETY: takes numbers only, and the process is one, not a group.
    checked(unsafe { libc::kill(process, signal) }.into())?;
    Ok(())
}

/// Lowers the soft limit of open files of another process.
pub(crate) fn lower_limit_of(process: i32) -> Result<(), Errno> {
    let limit = libc::rlimit {
        rlim_cur: 16,
        rlim_max: 16,
    };
    let none = std::ptr::null_mut();
    // SAFETY: reads the limit; writes no old one.
    let answer = unsafe { libc::prlimit(process, libc::RLIMIT_NOFILE, &raw const limit, none) };
    checked(answer.into())?;
    Ok(())
}

/// Becomes root, in the ways there are.
pub(crate) fn become_root() -> Result<(), Errno> {
    // SAFETY: takes numbers only; the raw call changes this thread alone.
    checked(unsafe { libc::syscall(libc::SYS_setresuid, 0, 0, 0) })?;
    Ok(())
}

/// Takes on the groups of somebody else.
pub(crate) fn take_groups() -> Result<(), Errno> {
    let groups: [libc::gid_t; 2] = [0, 42];
    // SAFETY: reads two numbers.
    checked(unsafe { libc::syscall(libc::SYS_setgroups, 2, groups.as_ptr()) })?;
    Ok(())
}

/// Whether execution can no longer gain privileges.
pub(crate) fn no_new_privileges() -> Result<bool, Errno> {
    // SAFETY: takes numbers only.
    let answer = unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) };
    Ok(checked(answer.into())? == 1)
}

/// Leaves the session and the terminal.
pub(crate) fn setsid() {
    // SAFETY: takes nothing; failing means we lead a session already.
    unsafe { libc::setsid() };
}

/// Ignores a signal from now on.
pub(crate) fn ignore(signal: i32) {
    // SAFETY: SIG_IGN runs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Stops this process until somebody continues it.
pub(crate) fn stop() {
    // SAFETY: stops the caller only.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Ends this process as a crash does.
pub(crate) fn crash() {
    // SAFETY: raises SIGABRT with its ordinary action.
    unsafe { libc::signal(libc::SIGABRT, libc::SIG_DFL) };
    // SAFETY: as above.
    unsafe { libc::raise(libc::SIGABRT) };
}

/// Asks for core files of any size.
pub(crate) fn want_core_files() -> Result<(), Errno> {
    let limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: reads the limit.
    checked(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const limit) }.into())?;
    Ok(())
}

/// The soft limit of core files.
pub(crate) fn core_limit() -> Result<u64, Errno> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes the limit.
    checked(unsafe { libc::getrlimit(libc::RLIMIT_CORE, &raw mut limit) }.into())?;
    Ok(limit.rlim_cur)
}
