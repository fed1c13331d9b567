//! The system calls that no crate wraps.
//!
//! The only file of the shim with `unsafe`. A shim has one thread, so a child
//! that was forked may go on like any other process.

#![expect(unsafe_code, reason = "system calls without a safe wrapper")]

use std::ffi::{CString, c_int, c_long};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::Pid;
use tokio::io::unix::AsyncFd;

/// Which side of a fork this is.
pub(crate) enum Forked {
    /// The new process.
    Child,
    /// The old one, with the new one's id and descriptor.
    Parent(Pid, OwnedFd),
}

/// All namespaces of an instance. That of control groups comes later, when the
/// process is in its group.
pub(crate) const NAMESPACES: c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;

/// Forks into new namespaces. The caller has one thread.
pub(crate) fn fork(namespaces: c_int) -> io::Result<Forked> {
    let mut pidfd: c_int = -1;
    let flags = namespaces | libc::CLONE_PIDFD | libc::SIGCHLD;
    let none = std::ptr::null_mut::<c_int>();
    // SAFETY: without CLONE_VM the child has its own copy of everything; no
    // stack means that of the caller, copied; `pidfd` outlives the call.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, none, &raw mut pidfd, none, none) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            // SAFETY: the kernel has just made this descriptor for us alone.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Forked::Parent(
                pid.ok_or(io::ErrorKind::InvalidData)?,
                pidfd,
            ))
        }
    }
}

/// Leaves the mounts of the host for a copy of them.
pub(crate) fn own_mounts() -> io::Result<()> {
    // SAFETY: leaves memory and descriptors alone; there is one thread.
    check(c_long::from(unsafe { libc::unshare(libc::CLONE_NEWNS) }))
}

/// Leaves the host's network for an empty one, with this thread alone.
pub(crate) fn own_network() -> io::Result<()> {
    // SAFETY: leaves memory and descriptors alone.
    check(c_long::from(unsafe { libc::unshare(libc::CLONE_NEWNET) }))
}

/// Makes the control groups this process is in the only ones it sees.
pub(crate) fn own_cgroups() -> io::Result<()> {
    // SAFETY: as above.
    check(c_long::from(unsafe {
        libc::unshare(libc::CLONE_NEWCGROUP)
    }))
}

/// Ends this process without running anything that its parent registered.
pub(crate) fn exit_now(code: c_int) -> ! {
    // SAFETY: takes no memory and does not return.
    unsafe { libc::_exit(code) }
}

/// Becomes the user and group 0 of its namespace, without other groups.
pub(crate) fn become_root() -> io::Result<()> {
    // SAFETY: no groups, so no memory.
    check(unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()) })?;
    // SAFETY: takes no memory; there is one thread.
    check(unsafe { libc::syscall(libc::SYS_setresgid, 0, 0, 0) })?;
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_setresuid, 0, 0, 0) })
}

/// `struct mount_attr` of the kernel.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Shows the files of a mount as if their owners were those of a namespace,
/// and to be read only, whatever they are elsewhere.
pub(crate) fn map_owners(mount: BorrowedFd<'_>, namespace: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = MountAttributes {
        set: libc::MOUNT_ATTR_IDMAP
            | libc::MOUNT_ATTR_RDONLY
            | libc::MOUNT_ATTR_NOSUID
            | libc::MOUNT_ATTR_NODEV,
        clear: 0,
        propagation: 0,
        user_namespace: u64::try_from(namespace.as_raw_fd()).unwrap_or(u64::MAX),
    };
    // SAFETY: the path is a constant, the structure lives until the call
    // returns, and its size is given.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    })
}

/// `struct loop_info64` of the kernel.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    real_device: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encryption: u32,
    key_size: u32,
    flags: u32,
    names: [u8; 64 + 64 + 32],
    init: [u64; 2],
}

/// `struct loop_config` of the kernel.
#[repr(C)]
struct LoopConfig {
    file: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// The number of a loop device that nobody uses now.
pub(crate) fn free_loop(control: BorrowedFd<'_>) -> io::Result<i32> {
    const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
    // SAFETY: takes no memory.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    check(c_long::from(number))?;
    Ok(number)
}

/// What may be done to a file by its loop device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoopAccess {
    /// It is read.
    Read,
    /// It is written, too.
    Write,
}

/// Makes a loop device of a file, and gone when its last user is.
pub(crate) fn set_loop(
    device: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    access: LoopAccess,
) -> io::Result<()> {
    const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
    const READ_ONLY: u32 = 1;
    const AUTOCLEAR: u32 = 4;
    let flags = match access {
        LoopAccess::Read => READ_ONLY | AUTOCLEAR,
        LoopAccess::Write => AUTOCLEAR,
    };
    let config = LoopConfig {
        file: u32::try_from(file.as_raw_fd()).map_err(|_| io::ErrorKind::InvalidInput)?,
        block_size: 0,
        info: LoopInfo {
            device: 0,
            inode: 0,
            real_device: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encryption: 0,
            key_size: 0,
            flags,
            names: [0; 160],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: the structure is what this request reads, and outlives the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    check(c_long::from(result))
}

/// Puts descriptors where the next program looks for them: the first at 0 and
/// so on; every other one is closed by `execve`.
pub(crate) fn arrange(descriptors: Vec<OwnedFd>) -> io::Result<()> {
    // First all out of the way, then each to its place.
    let first = RawFd::try_from(descriptors.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let moved = descriptors
        .into_iter()
        .map(|fd| rustix::io::fcntl_dupfd_cloexec(&fd, first + 10))
        .collect::<Result<Vec<_>, _>>()?;
    // SAFETY: only changes flags of descriptors.
    check(unsafe {
        libc::syscall(
            libc::SYS_close_range,
            0,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    })?;
    for (place, fd) in (0..).zip(&moved) {
        // SAFETY: what was at that place belongs to a process that is about to
        // become another program and uses none of it again.
        check(c_long::from(unsafe { libc::dup2(fd.as_raw_fd(), place) }))?;
    }
    Ok(())
}

/// A descriptor that a task waits for.
pub(crate) fn register(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the registration owns the descriptor, so it is neither closed
    // nor replaced before it is taken back.
    unsafe { AsyncFd::register(descriptor) }.map_err(io::Error::from)
}

/// Becomes the program in a file; returns only if that failed.
pub(crate) fn execute(program: BorrowedFd<'_>, argv: &[CString]) -> io::Error {
    let pointers: Vec<*const libc::c_char> = argv
        .iter()
        .map(|text| text.as_ptr())
        .chain([std::ptr::null()])
        .collect();
    let environment = [std::ptr::null::<libc::c_char>()];
    // SAFETY: both arrays end with a null pointer and outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            pointers.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

fn check(result: c_long) -> io::Result<()> {
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// The version of the kernel's Landlock; not above 0 where it has none.
#[must_use]
pub fn landlock_version() -> i64 {
    const ASK_VERSION: u32 = 1;
    // SAFETY: with this flag the kernel takes no attributes, only returns a
    // number.
    unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            ASK_VERSION,
        )
    }
}
