//! The raw system calls that no crate wraps, one function each.
//!
//! This is the only file of the launcher with `unsafe`; every function is
//! either free of memory hazards or says what its caller must hold to.

#![expect(unsafe_code, reason = "system calls without a safe wrapper")]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::Pid;
use tokio::io::unix::AsyncFd;

use crate::guard::{Guard, Guards};

/// Which side of a fork this is.
#[derive(Debug)]
pub(crate) enum Forked {
    /// The new process.
    Child,
    /// The old one, with the new one's id and, if asked for, descriptor.
    Parent {
        /// Its id.
        pid: Pid,
        /// Its descriptor.
        pidfd: OwnedFd,
    },
}

/// The arguments of `clone3`, version 3.
#[repr(C, align(8))]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// All namespaces of a sandbox. The cgroup namespace comes later, when the
/// process is in its group.
pub(crate) const NAMESPACES: c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;

/// The namespaces of a sandbox that lacks guards, for the controls.
pub(crate) fn namespaces_without(guards: Guards) -> c_int {
    let mut namespaces = NAMESPACES;
    if !guards.has_pid_namespace() {
        namespaces &= !libc::CLONE_NEWPID;
    }
    if guards.lacks(Guard::NetworkNamespace) {
        namespaces &= !libc::CLONE_NEWNET;
    }
    if guards.lacks(Guard::IpcNamespace) {
        namespaces &= !libc::CLONE_NEWIPC;
    }
    namespaces
}

/// Forks into new namespaces; zero flags make a plain fork.
///
/// The caller must be single-threaded: the child goes on with a copy of all
/// memory, and another thread's locks would stay locked in it for ever.
pub(crate) fn fork(namespaces: c_int) -> io::Result<Forked> {
    fork_into(namespaces, None)
}

/// The same, with the child in a control group of version 2 from its start.
pub(crate) fn fork_into(namespaces: c_int, group: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    const HIDDEN: Option<i32> = Some(libc::ENOSYS);
    let mut pidfd: c_int = -1;
    let arguments = CloneArguments {
        flags: (namespaces as u64) | (libc::CLONE_PIDFD as u64) | group.map_or(0, |_| INTO_CGROUP),
        cgroup: group.map_or(0, |group| group.as_raw_fd() as u64),
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArguments::default()
    };
    // SAFETY: without CLONE_VM the child has its own copy of everything; the
    // structure and `pidfd` live until the call returns.
    let mut pid = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const arguments,
            size_of::<CloneArguments>(),
        )
    };
    // Engines of containers hide the newer call, whose arguments their filters
    // cannot see, so that programs use the older one.
    if pid == -1 && group.is_none() && io::Error::last_os_error().raw_os_error() == HIDDEN {
        let flags = namespaces | libc::CLONE_PIDFD | libc::SIGCHLD;
        let none = std::ptr::null_mut::<c_int>();
        // SAFETY: as above; no stack means that of the caller, copied, and the
        // order of the last two, which differs by architecture, is no matter.
        pid = unsafe { libc::syscall(libc::SYS_clone, flags, none, &raw mut pidfd, none, none) };
    }
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => {
            let pid = i32::try_from(pid)
                .ok()
                .and_then(Pid::from_raw)
                .ok_or(io::ErrorKind::InvalidData)?;
            // SAFETY: the kernel has just made this descriptor for us alone.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Forked::Parent { pid, pidfd })
        }
    }
}

/// Starts a process that borrows this one's memory until it executes a program
/// or ends; this one stands still meanwhile. Much cheaper than a copy.
///
/// The caller must be single-threaded. The child must not allocate: somebody
/// may end it at any moment, and what it leaves is this process's own.
pub(crate) fn fork_borrowing(mut child: &mut dyn FnMut() -> c_int) -> io::Result<Pid> {
    const STACK: usize = 256 << 10;
    const ALIGNMENT: usize = 16;
    extern "C" fn enter(child: *mut c_void) -> c_int {
        // SAFETY: it is the reference below, whose owner stands still.
        let child = unsafe { &mut *child.cast::<&mut dyn FnMut() -> c_int>() };
        child()
    }
    let mut stack = Vec::<u8>::with_capacity(STACK);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack's top is inside or one past its allocation, and grows
    // down into it. With CLONE_VFORK this process goes on only when the child
    // has left the memory, so stack and closure outlive its use of them.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(STACK);
        let top = top.sub(top.addr() % ALIGNMENT);
        libc::clone(enter, top.cast(), flags, (&raw mut child).cast())
    };
    check(c_long::from(pid))?;
    Pid::from_raw(pid).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Ends this process without running anything that its parent registered.
pub(crate) fn exit_now(code: c_int) -> ! {
    // SAFETY: `_exit` takes no memory and does not return.
    unsafe { libc::_exit(code) }
}

/// `struct mount_attr` of the kernel.
#[repr(C)]
#[derive(Default)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Attributes to add to a mount.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attributes(u64);

impl Attributes {
    /// No writes, no setuid, no devices.
    pub(crate) const READ_ONLY: Self =
        Self(libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV);
    /// No setuid, no devices.
    pub(crate) const WRITABLE: Self = Self(libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV);
    /// A device node: it must stay a device.
    pub(crate) const DEVICE: Self = Self(libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC);
}

/// Adds attributes to a mount and everything mounted below it.
pub(crate) fn set_attributes(mount: BorrowedFd<'_>, attributes: Attributes) -> io::Result<()> {
    let attributes = MountAttributes {
        set: attributes.0,
        ..MountAttributes::default()
    };
    let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    // SAFETY: the path is a constant, the structure lives until the call
    // returns, and its size is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    check(result)
}

/// Closes every descriptor from `first` on.
pub(crate) fn close_from(first: RawFd) -> io::Result<()> {
    let first = libc::c_uint::try_from(first).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: callers own the whole process and use no descriptor above
    // `first` afterwards: this is called only between fork and exec or serve.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) };
    check(result)
}

/// Closes every descriptor above the three but this one, which becomes 3.
pub(crate) fn only_descriptor(kept: OwnedFd) -> io::Result<OwnedFd> {
    const PLACE: RawFd = 3;
    if kept.as_raw_fd() != PLACE {
        // SAFETY: whoever owned descriptor 3 is a copy in a forked process
        // that never uses it again; every other one is closed just below.
        if unsafe { libc::dup3(kept.as_raw_fd(), PLACE, libc::O_CLOEXEC) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    close_from(PLACE + 1)?;
    // Closed already, or is the very descriptor that is returned.
    std::mem::forget(kept);
    // SAFETY: it was made above, and nobody else holds it.
    Ok(unsafe { OwnedFd::from_raw_fd(PLACE) })
}

/// Lets the next program keep a descriptor.
pub(crate) fn keep_across_exec(kept: OwnedFd) -> io::Result<()> {
    rustix::io::fcntl_setfd(&kept, rustix::io::FdFlags::empty())?;
    // It belongs to the program that comes.
    std::mem::forget(kept);
    Ok(())
}

/// The socket that an init is started with.
pub(crate) fn inherited_control() -> io::Result<OwnedFd> {
    const PLACE: RawFd = 3;
    // SAFETY: only looks at the descriptor, which may well be closed.
    if unsafe { libc::fcntl(PLACE, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and this is called once, before anything else opens
    // or owns a descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(PLACE) })
}

/// Sends a signal to every process this one may signal, but not to itself.
/// Only for the first process of a pid namespace.
pub(crate) fn signal_everyone(signal: c_int) -> io::Result<()> {
    if std::process::id() != 1 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: takes no memory; as process 1 of a namespace it reaches that
    // namespace alone.
    check(c_long::from(unsafe { libc::kill(-1, signal) }))
}

/// Marks every descriptor but the three to be closed by `execve`.
pub(crate) fn close_at_exec() -> io::Result<()> {
    // SAFETY: only changes flags of descriptors; none is closed here.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    check(result)
}

/// Blocks the signals a process waits for with a descriptor, and returns it.
pub(crate) fn signal_descriptor(signals: &[c_int]) -> io::Result<OwnedFd> {
    // SAFETY: an all-zero set is a valid argument of `sigemptyset`, which
    // initialises it; the set lives until the calls return.
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

/// Gives this process, and with it its commands, the actions every program
/// expects: nothing ignored (Rust's start-up ignores SIGPIPE).
pub(crate) fn reset_signals() {
    for signal in 1..=64 {
        // SAFETY: default actions need no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Blocks no signal any more.
pub(crate) fn unblock_signals() {
    // SAFETY: the set is initialised by `sigemptyset` and outlives the call.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// Texts in the form that a new program gets them, made before a fork.
pub(crate) struct Words {
    /// Keeps what the pointers point to, which does not move with it.
    _texts: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl Words {
    /// These texts, in this order.
    pub(crate) fn new(texts: Vec<CString>) -> Self {
        let pointers = texts.iter().map(|text| text.as_ptr());
        Self {
            pointers: pointers.chain([std::ptr::null()]).collect(),
            _texts: texts,
        }
    }
}

/// Replaces this process; returns only if that failed. Allocates nothing.
pub(crate) fn execute(program: &CStr, argv: &Words, environment: &Words) -> io::Error {
    let (argv, environment) = (argv.pointers.as_ptr(), environment.pointers.as_ptr());
    // SAFETY: both arrays end with a null pointer and outlive the call.
    unsafe { libc::execve(program.as_ptr(), argv, environment) };
    io::Error::last_os_error()
}

/// Brings the loopback of this network namespace up.
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    // SAFETY: `ifreq` is plain data; its name is shorter than the array.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    request.ifr_ifru.ifru_flags = UP_AND_RUNNING;
    // SAFETY: the structure is what this request reads, and outlives the call.
    let result = unsafe {
        libc::ioctl(
            socket.as_fd().as_raw_fd(),
            libc::SIOCSIFFLAGS,
            &raw const request,
        )
    };
    check(c_long::from(result))
}

const UP_AND_RUNNING: libc::c_short = 0x41;

/// Becomes another user and group, for good.
pub(crate) fn become_user(uid: libc::uid_t, gid: libc::gid_t) -> io::Result<()> {
    // SAFETY: takes no memory; the caller has one thread.
    check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })
}

/// Makes the control group this process is in the only one it sees.
pub(crate) fn own_cgroup_namespace() -> io::Result<()> {
    // SAFETY: leaves memory, descriptors and other threads alone.
    check(c_long::from(unsafe {
        libc::unshare(libc::CLONE_NEWCGROUP)
    }))
}

/// Leaves the caller's session keyring for an empty one.
pub(crate) fn new_session_keyring() -> io::Result<()> {
    // SAFETY: KEYCTL_JOIN_SESSION_KEYRING with no name takes no memory.
    let result = unsafe { libc::syscall(libc::SYS_keyctl, 1, std::ptr::null::<libc::c_char>()) };
    // Kernels without keyrings have nothing to leave.
    match check(result.min(0)) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        result => result,
    }
}

/// A descriptor that a task waits for.
pub(crate) fn register(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the registration owns the descriptor, so it is neither closed
    // nor replaced before it is taken back.
    unsafe { AsyncFd::register(descriptor) }.map_err(io::Error::from)
}

fn check(result: c_long) -> io::Result<()> {
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
