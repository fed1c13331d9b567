//! The profiles as data: which system calls exist inside a sandbox.
//!
//! A call is allowed because it is in a group of the profile; a call that is
//! refused by name or by its arguments is in the tables below. Never put a
//! path's meaning here: a filter cannot read memory. Next: `super` compiles
//! these tables, `calls` has the numbers.

use crate::template::Profile;

/// What a call's argument is compared with; arguments are numbered from nought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Test {
    /// The low half of the argument is this.
    Is(u8, u32),
    /// The low half of the argument is not this.
    IsNot(u8, u32),
    /// These bits of the low half are this.
    Bits(u8, u32, u32),
}

/// A call that is refused when all of its tests hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    pub(super) call: &'static str,
    pub(super) tests: &'static [Test],
}

/// Where a filter stands: behind namespaces, or without any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Namespaces,
    Alone,
}

/// The groups of calls that a profile allows.
pub(super) fn allowed(profile: Profile) -> &'static [&'static [&'static str]] {
    match profile {
        Profile::Strict | Profile::StrictNet => {
            &[COMPUTE, DESCRIPTORS, UNIX_SOCKETS, READ_FILES, EXECUTE]
        }
        Profile::StrictFiles => &[
            COMPUTE,
            DESCRIPTORS,
            UNIX_SOCKETS,
            READ_FILES,
            EXECUTE,
            WRITE_FILES,
            SERVE_SOCKETS,
        ],
        Profile::Standard | Profile::StandardNet => &[
            COMPUTE,
            DESCRIPTORS,
            UNIX_SOCKETS,
            READ_FILES,
            EXECUTE,
            WRITE_FILES,
            SERVE_SOCKETS,
            PROCESSES,
        ],
    }
}

/// What is left to a worker of our own that has started: computing, and the
/// descriptors it already has.
pub(super) const SEALED: &[&[&str]] = &[COMPUTE, DESCRIPTORS];

/// Every refusal that holds for a profile, those by name included.
pub(super) fn refused(profile: Profile, place: Place) -> Vec<Refusal> {
    let mut refusals = by_name(NEVER);
    refusals.extend_from_slice(NEVER_LIKE_THIS);
    match profile {
        Profile::Strict => {
            refusals.extend(by_name(NO_PROCESSES));
            refusals.extend_from_slice(ONLY_THREADS);
            refusals.extend_from_slice(ONLY_UNIX);
            refusals.extend_from_slice(ONLY_READING);
        }
        Profile::StrictNet => {
            refusals.extend(by_name(NO_PROCESSES));
            refusals.extend_from_slice(ONLY_THREADS);
            refusals.extend_from_slice(PLAIN_SOCKETS);
            refusals.extend_from_slice(ONLY_READING);
        }
        Profile::StrictFiles => {
            refusals.extend(by_name(NO_PROCESSES));
            refusals.extend_from_slice(ONLY_THREADS);
            refusals.extend_from_slice(ONLY_UNIX);
        }
        Profile::Standard | Profile::StandardNet => refusals.extend_from_slice(PLAIN_SOCKETS),
    }
    if place == Place::Alone {
        refusals.extend(by_name(SHARED_WITH_THE_HOST));
        refusals.extend_from_slice(ONLY_ITSELF);
    }
    refusals
}

/// Every refusal that holds for the agent's kernel. It has no namespaces, and
/// starts the workers of policy extensions.
pub(super) fn refused_to_kernel() -> Vec<Refusal> {
    let mut refusals = by_name(NEVER);
    refusals.extend_from_slice(NEVER_LIKE_THIS);
    refusals.extend_from_slice(ONLY_UNIX);
    refusals.extend_from_slice(ONLY_ITSELF);
    // The one thing of these that it needs is its socket.
    let shared = SHARED_WITH_THE_HOST
        .iter()
        .filter(|call| **call != "socket");
    refusals.extend(shared.map(|call| Refusal { call, tests: &[] }));
    refusals
}

fn by_name(calls: &[&'static str]) -> Vec<Refusal> {
    let refusal = |call: &&'static str| Refusal { call, tests: &[] };
    calls.iter().map(refusal).collect()
}

/// Memory, time, signals, threads, waiting: what any program needs.
const COMPUTE: &[&str] = &[
    "alarm",
    "arch_prctl",
    "brk",
    "capget",
    "clock_getres",
    "clock_gettime",
    "clock_nanosleep",
    "clone", // never with a new namespace, see the refusals; `clone3` cannot be looked into
    "epoll_create",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "eventfd",
    "eventfd2",
    "exit",
    "exit_group",
    "futex",
    "futex_requeue",
    "futex_wait",
    "futex_waitv",
    "futex_wake",
    "get_robust_list",
    "getcpu",
    "getegid",
    "geteuid",
    "getgid",
    "getgroups",
    "getitimer",
    "getpgid",
    "getpgrp",
    "getpid",
    "getppid",
    "getpriority",
    "getrandom",
    "getresgid",
    "getresuid",
    "getrlimit",
    "getrusage",
    "getsid",
    "gettid",
    "gettimeofday",
    "getuid",
    "kill", // only its own pid namespace hears it
    "madvise",
    "map_shadow_stack",
    "membarrier",
    "memfd_create",
    "mincore",
    "mlock",
    "mlock2",
    "mlockall",
    "mmap",
    "mprotect",
    "mremap",
    "mseal",
    "msync",
    "munlock",
    "munlockall",
    "munmap",
    "nanosleep",
    "pause",
    "personality",
    "pkey_alloc", // V8 guards its code with them
    "pkey_free",
    "pkey_mprotect",
    "poll",
    "ppoll",
    "prctl",
    "prlimit64",
    "pselect6",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigpending",
    "rt_sigprocmask",
    "rt_sigqueueinfo",
    "rt_sigreturn",
    "rt_sigsuspend",
    "rt_sigtimedwait",
    "rt_tgsigqueueinfo",
    "sched_get_priority_max",
    "sched_get_priority_min",
    "sched_getaffinity",
    "sched_getattr",
    "sched_getparam",
    "sched_getscheduler",
    "sched_rr_get_interval",
    "sched_setaffinity",
    "sched_setattr",
    "sched_setparam",
    "sched_setscheduler",
    "sched_yield",
    "seccomp", // a filter can only take more away
    "select",
    "set_robust_list",
    "set_tid_address",
    "setitimer",
    "setpriority",
    "setrlimit",
    "sigaltstack",
    "signalfd",
    "signalfd4",
    "sysinfo",
    "tgkill",
    "time",
    "timer_create",
    "timer_delete",
    "timer_getoverrun",
    "timer_gettime",
    "timer_settime",
    "timerfd_create",
    "timerfd_gettime",
    "timerfd_settime",
    "times",
    "tkill",
    "umask",
    "uname",
];

/// Descriptors that are already open.
const DESCRIPTORS: &[&str] = &[
    "close",
    "close_range",
    "copy_file_range",
    "dup",
    "dup2",
    "dup3",
    "fadvise64",
    "fallocate",
    "fcntl",
    "fdatasync",
    "fstat",
    "fstatfs",
    "fsync",
    "ftruncate",
    "getpeername",
    "getsockname",
    "getsockopt",
    "ioctl",
    "lseek",
    "pipe",
    "pipe2",
    "pread64",
    "preadv",
    "preadv2",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "read",
    "readahead",
    "readv",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "sendfile",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "setsockopt",
    "shutdown",
    "splice",
    "sync_file_range",
    "tee",
    "vmsplice",
    "write",
    "writev",
];

/// Talking to a socket that somebody else serves.
const UNIX_SOCKETS: &[&str] = &["connect", "socket", "socketpair"];

/// Serving a socket.
const SERVE_SOCKETS: &[&str] = &["accept", "accept4", "bind", "listen"];

/// Looking at files; a program cannot even be loaded without.
const READ_FILES: &[&str] = &[
    "access",
    "cachestat",
    "chdir",
    "faccessat",
    "faccessat2",
    "fchdir",
    "fgetxattr",
    "flistxattr",
    "getcwd",
    "getdents",
    "getdents64",
    "getxattr",
    "lgetxattr",
    "listxattr",
    "llistxattr",
    "lstat",
    "newfstatat",
    "open",
    "openat",
    "readlink",
    "readlinkat",
    "stat",
    "statfs",
    "statx",
];

/// Another program in the same process: the one that the sandbox is for.
const EXECUTE: &[&str] = &["execve", "execveat"];

/// Changing files.
const WRITE_FILES: &[&str] = &[
    "chmod",
    "chown",
    "creat",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "fchown",
    "fchownat",
    "flock",
    "fremovexattr",
    "fsetxattr",
    "futimesat",
    "inotify_add_watch",
    "inotify_init",
    "inotify_init1",
    "inotify_rm_watch",
    "lchown",
    "link",
    "linkat",
    "lremovexattr",
    "lsetxattr",
    "mkdir",
    "mkdirat",
    "mknod", // for pipes; devices need a capability that nobody has
    "mknodat",
    "openat2", // its flags lie in memory, so it cannot be a way of reading only
    "removexattr",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "setxattr",
    "symlink",
    "symlinkat",
    "sync",
    "syncfs",
    "truncate",
    "unlink",
    "unlinkat",
    "utime",
    "utimensat",
    "utimes",
];

/// Processes, sessions, terminals and what they share with each other.
const PROCESSES: &[&str] = &[
    "capset",
    "fork",
    "ioprio_get",
    "ioprio_set",
    "landlock_add_rule", // programs may wall themselves in further
    "landlock_create_ruleset",
    "landlock_restrict_self",
    "mq_getsetattr",
    "mq_notify",
    "mq_open",
    "mq_timedreceive",
    "mq_timedsend",
    "mq_unlink",
    "msgctl", // of its own ipc namespace
    "msgget",
    "msgrcv",
    "msgsnd",
    "pidfd_open",
    "pidfd_send_signal",
    "process_mrelease",
    "semctl",
    "semget",
    "semop",
    "semtimedop",
    "setfsgid",
    "setfsuid",
    "setgid",
    "setgroups",
    "setpgid",
    "setregid",
    "setresgid",
    "setresuid",
    "setreuid",
    "setsid",
    "setuid",
    "shmat", // PostgreSQL
    "shmctl",
    "shmdt",
    "shmget",
    "vfork",
    "wait4",
    "waitid",
];

/// Known, and refused by name: a program learns that it may not, not that the
/// kernel is old.
const NEVER: &[&str] = &[
    "acct",
    "add_key", // keyrings are not namespaced
    "adjtimex",
    "bpf",
    "chroot",
    "clock_adjtime",
    "clock_settime",
    "delete_module",
    "fanotify_init",
    "fanotify_mark",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "get_mempolicy",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup", // does what it is asked past any filter
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "mbind",
    "migrate_pages",
    "modify_ldt",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "name_to_handle_at",
    "open_by_handle_at", // opens past every path
    "open_tree",
    "open_tree_attr",
    "perf_event_open",
    "pidfd_getfd",
    "pivot_root",
    "process_madvise",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "request_key",
    "set_mempolicy",
    "set_mempolicy_home_node",
    "setdomainname",
    "sethostname",
    "setns",
    "settimeofday",
    "swapoff",
    "swapon",
    "syslog",
    "umount2",
    "unshare",
    "userfaultfd",
    "vhangup",
];

const CLONE_NEW: [u32; 7] = [
    0x0002_0000, // mount
    0x0200_0000, // cgroup
    0x0400_0000, // uts
    0x0800_0000, // ipc
    0x1000_0000, // user
    0x2000_0000, // pid
    0x4000_0000, // net
];
const CLONE_THREAD: u32 = 0x0001_0000;
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
const TIOCSETD: u32 = 0x5423;
const PR_SET_MM: u32 = 35;

/// Allowed calls whose arguments make them something else. The kernel reads
/// only the low half of each argument tested here, so the filter does too.
const NEVER_LIKE_THIS: &[Refusal] = &[
    refusal("clone", &[Test::Bits(0, CLONE_NEW[0], CLONE_NEW[0])]),
    refusal("clone", &[Test::Bits(0, CLONE_NEW[1], CLONE_NEW[1])]),
    refusal("clone", &[Test::Bits(0, CLONE_NEW[2], CLONE_NEW[2])]),
    refusal("clone", &[Test::Bits(0, CLONE_NEW[3], CLONE_NEW[3])]),
    refusal("clone", &[Test::Bits(0, CLONE_NEW[4], CLONE_NEW[4])]),
    refusal("clone", &[Test::Bits(0, CLONE_NEW[5], CLONE_NEW[5])]),
    refusal("clone", &[Test::Bits(0, CLONE_NEW[6], CLONE_NEW[6])]),
    // Typing into a terminal for somebody else, in two ways.
    refusal("ioctl", &[Test::Is(1, TIOCSTI)]),
    refusal("ioctl", &[Test::Is(1, TIOCLINUX)]),
    // Loads line disciplines, old code that nobody looks at.
    refusal("ioctl", &[Test::Is(1, TIOCSETD)]),
    refusal("prctl", &[Test::Is(0, PR_SET_MM)]),
    // Only asking, and the usual value; others switch protections off.
    refusal(
        "personality",
        &[Test::IsNot(0, 0), Test::IsNot(0, u32::MAX)],
    ),
];

const NO_PROCESSES: &[&str] = &["fork", "vfork"];
const ONLY_THREADS: &[Refusal] = &[refusal("clone", &[Test::Bits(0, CLONE_THREAD, 0)])];

const UNIX: u32 = 1;
const INET: u32 = 2;
const INET6: u32 = 10;
const NETLINK: u32 = 16;
const RAW: u32 = 3;
const TCP: u32 = 6;
const UDP: u32 = 17;

const ONLY_UNIX: &[Refusal] = &[
    refusal("socket", &[Test::IsNot(0, UNIX)]),
    refusal("socketpair", &[Test::IsNot(0, UNIX)]),
];

/// Streams and datagrams of the three families, and asking for the network's
/// interfaces (`getifaddrs`). The flags above the type's four bits are free.
const PLAIN_SOCKETS: &[Refusal] = &[
    refusal(
        "socket",
        &[
            Test::IsNot(0, UNIX),
            Test::IsNot(0, INET),
            Test::IsNot(0, INET6),
            Test::IsNot(0, NETLINK),
        ],
    ),
    refusal(
        "socket",
        &[Test::IsNot(2, 0), Test::IsNot(2, TCP), Test::IsNot(2, UDP)],
    ),
    // Netlink only as the routing protocol, which is number nought.
    refusal("socket", &[Test::Is(0, NETLINK), Test::IsNot(2, 0)]),
    refusal("socket", &[kind(RAW), Test::IsNot(0, NETLINK)]),
    // Every other type; the fifth is a unix socket's sequence of packets.
    refusal("socket", &[kind(0)]),
    refusal("socket", &[kind(4)]),
    refusal("socket", &[kind(5), Test::IsNot(0, UNIX)]),
    refusal("socket", &[kind(6)]),
    refusal("socket", &[kind(7)]),
    refusal("socket", &[kind(8)]),
    refusal("socket", &[kind(9)]),
    refusal("socket", &[kind(10)]), // SOCK_PACKET makes any family AF_PACKET
    refusal("socket", &[kind(11)]),
    refusal("socket", &[kind(12)]),
    refusal("socket", &[kind(13)]),
    refusal("socket", &[kind(14)]),
    refusal("socket", &[kind(15)]),
    refusal("socketpair", &[Test::IsNot(0, UNIX)]),
];

/// `O_WRONLY`, `O_RDWR`, `O_CREAT`, `O_TRUNC`: the same on both architectures.
const ONLY_READING: &[Refusal] = &[
    refusal("openat", &[Test::Bits(2, 0o1, 0o1)]),
    refusal("openat", &[Test::Bits(2, 0o2, 0o2)]),
    refusal("openat", &[Test::Bits(2, 0o100, 0o100)]),
    refusal("openat", &[Test::Bits(2, 0o1000, 0o1000)]),
    refusal("open", &[Test::Bits(1, 0o1, 0o1)]),
    refusal("open", &[Test::Bits(1, 0o2, 0o2)]),
    refusal("open", &[Test::Bits(1, 0o100, 0o100)]),
    refusal("open", &[Test::Bits(1, 0o1000, 0o1000)]),
];

/// What namespaces would have kept apart. A unix socket needs no network: a
/// path is enough to reach an agent or an engine, so no socket is made at all.
const SHARED_WITH_THE_HOST: &[&str] = &[
    "mq_open",
    "mq_unlink",
    "msgctl",
    "msgget",
    "msgrcv",
    "msgsnd",
    "semctl",
    "semget",
    "semop",
    "semtimedop",
    "shmat",
    "shmctl",
    "shmget",
    "socket",
];

/// Calls that would change another process of the same user.
const ONLY_ITSELF: &[Refusal] = &[
    refusal("prlimit64", &[Test::IsNot(0, 0)]),
    refusal("sched_setaffinity", &[Test::IsNot(0, 0)]),
    refusal("sched_setattr", &[Test::IsNot(0, 0)]),
    refusal("sched_setparam", &[Test::IsNot(0, 0)]),
    refusal("sched_setscheduler", &[Test::IsNot(0, 0)]),
    refusal("setpriority", &[Test::IsNot(1, 0)]),
];

const fn refusal(call: &'static str, tests: &'static [Test]) -> Refusal {
    Refusal { call, tests }
}

/// The type of a socket without its flags.
const fn kind(kind: u32) -> Test {
    Test::Bits(1, 0xf, kind)
}
