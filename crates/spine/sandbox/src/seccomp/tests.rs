//! What every profile decides, on both architectures, without a kernel.

use super::calls::CALLS;
use super::*;

const BOTH: [Architecture; 2] = [Architecture::X86_64, Architecture::Aarch64];
const PROFILES: [Profile; 5] = [
    Profile::Strict,
    Profile::StrictNet,
    Profile::StrictFiles,
    Profile::Standard,
    Profile::StandardNet,
];
const NOTHING: [u64; 6] = [0; 6];

fn ask(profile: Profile, architecture: Architecture, call: &str, arguments: &[u64]) -> Action {
    let filter = Filter::compile(profile, architecture).unwrap();
    let mut all = NOTHING;
    all[..arguments.len()].copy_from_slice(arguments);
    interpret(
        &filter,
        architecture,
        architecture.number(call).unwrap(),
        all,
    )
}

const REFUSED: Action = Action::Errno(libc::EPERM);
const UNKNOWN: Action = Action::Errno(libc::ENOSYS);

#[test]
fn numbers_are_in_order_and_used_once() {
    assert!(CALLS.is_sorted_by(|a, b| a.name < b.name));
    for number in [
        |call: &calls::Call| call.x86_64,
        |call: &calls::Call| call.aarch64,
    ] {
        let mut numbers: Vec<u16> = CALLS.iter().filter_map(number).collect();
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }
    // Since 424 a call has the same number everywhere.
    for call in CALLS {
        if call.x86_64 >= Some(424) || call.aarch64 >= Some(424) {
            assert_eq!(call.x86_64, call.aarch64, "{}", call.name);
        }
    }
}

#[test]
fn numbers_are_those_of_the_system() {
    let native = Architecture::native();
    for (name, number) in [
        ("bpf", libc::SYS_bpf),
        ("clone", libc::SYS_clone),
        ("execve", libc::SYS_execve),
        ("faccessat2", libc::SYS_faccessat2),
        ("futex", libc::SYS_futex),
        ("getrandom", libc::SYS_getrandom),
        ("io_uring_setup", libc::SYS_io_uring_setup),
        ("ioctl", libc::SYS_ioctl),
        ("keyctl", libc::SYS_keyctl),
        ("memfd_create", libc::SYS_memfd_create),
        ("mount", libc::SYS_mount),
        ("newfstatat", libc::SYS_newfstatat),
        ("openat", libc::SYS_openat),
        ("perf_event_open", libc::SYS_perf_event_open),
        ("personality", libc::SYS_personality),
        ("pidfd_getfd", libc::SYS_pidfd_getfd),
        ("pkey_mprotect", libc::SYS_pkey_mprotect),
        ("prctl", libc::SYS_prctl),
        ("ptrace", libc::SYS_ptrace),
        ("rseq", libc::SYS_rseq),
        ("seccomp", libc::SYS_seccomp),
        ("setns", libc::SYS_setns),
        ("socket", libc::SYS_socket),
        ("socketpair", libc::SYS_socketpair),
        ("unshare", libc::SYS_unshare),
        ("userfaultfd", libc::SYS_userfaultfd),
        ("waitid", libc::SYS_waitid),
    ] {
        assert_eq!(native.number(name).map(i64::from), Some(number), "{name}");
    }
}

#[test]
fn every_refused_call_is_refused_by_every_profile() {
    let names: Vec<&str> = profiles::refused(Profile::Standard, Place::Namespaces)
        .iter()
        .filter(|refusal| refusal.tests.is_empty())
        .map(|refusal| refusal.call)
        .collect();
    assert!(names.len() > 50);
    for architecture in BOTH {
        for profile in PROFILES {
            for name in &names {
                if architecture.number(name).is_some() {
                    let action = ask(profile, architecture, name, &[]);
                    assert_eq!(action, REFUSED, "{profile:?} {architecture:?} {name}");
                }
            }
        }
    }
}

#[test]
fn a_call_that_nobody_speaks_of_does_not_exist() {
    for architecture in BOTH {
        for profile in PROFILES {
            let filter = Filter::compile(profile, architecture).unwrap();
            for number in [1_000, 0x3fff_ffff] {
                assert_eq!(interpret(&filter, architecture, number, NOTHING), UNKNOWN);
            }
            // Its flags lie in memory; without it libc uses `clone`.
            assert_eq!(ask(profile, architecture, "clone3", &[]), UNKNOWN);
        }
    }
}

#[test]
fn other_architectures_and_x32_end_the_process() {
    for profile in PROFILES {
        let filter = Filter::compile(profile, Architecture::X86_64).unwrap();
        // getpid and socketcall of i386, and numbers that are harmless in x86_64.
        for number in [0, 1, 20, 39, 102] {
            let action = interpret(&filter, Architecture::I386, number, NOTHING);
            assert_eq!(action, Action::KillProcess);
        }
        for number in [0, 1, 39, 101, 512, 521, 0x3fff_ffff] {
            let action = interpret(&filter, Architecture::X86_64, 0x4000_0000 | number, NOTHING);
            assert_eq!(action, Action::KillProcess, "x32 {number}");
        }
        let minus_one = interpret(&filter, Architecture::X86_64, u32::MAX, NOTHING);
        assert_eq!(minus_one, Action::KillProcess);
        let filter = Filter::compile(profile, Architecture::Aarch64).unwrap();
        for foreign in [Architecture::Arm, Architecture::X86_64, Architecture::I386] {
            let action = interpret(&filter, foreign, 20, NOTHING);
            assert_eq!(action, Action::KillProcess);
        }
    }
    assert!(Filter::compile(Profile::Strict, Architecture::I386).is_err());
    assert!(Filter::compile(Profile::Strict, Architecture::Arm).is_err());
}

#[test]
fn no_profile_makes_namespaces() {
    // mount, cgroup, uts, ipc, user, pid, net; with the bits of a thread too.
    let thread = 0x003d_0f00;
    for flag in [
        0x0002_0000_u64,
        0x0200_0000,
        0x0400_0000,
        0x0800_0000,
        0x1000_0000,
        0x2000_0000,
        0x4000_0000,
    ] {
        for architecture in BOTH {
            for profile in PROFILES {
                for extra in [17, thread, 0xffff_ffff_0000_0000] {
                    let action = ask(profile, architecture, "clone", &[flag | extra]);
                    assert_eq!(action, REFUSED, "{profile:?} {flag:x} {extra:x}");
                }
            }
        }
    }
}

#[test]
fn strict_starts_threads_but_no_processes() {
    let thread = 0x003d_0f00;
    for architecture in BOTH {
        for profile in [Profile::Strict, Profile::StrictNet, Profile::StrictFiles] {
            assert_eq!(
                ask(profile, architecture, "clone", &[thread]),
                Action::Allow
            );
            // As fork and posix_spawn do it.
            for flags in [17, 0x0120_0011, 0x4111] {
                assert_eq!(ask(profile, architecture, "clone", &[flags]), REFUSED);
            }
        }
        for flags in [17, 0x0120_0011, 0x4111, thread] {
            let action = ask(Profile::Standard, architecture, "clone", &[flags]);
            assert_eq!(action, Action::Allow);
        }
    }
    for profile in [Profile::Strict, Profile::StrictNet, Profile::StrictFiles] {
        for call in ["fork", "vfork"] {
            assert_eq!(ask(profile, Architecture::X86_64, call, &[]), REFUSED);
        }
    }
    let fork = ask(Profile::Standard, Architecture::X86_64, "fork", &[]);
    assert_eq!(fork, Action::Allow);
}

#[test]
fn sockets_are_those_of_the_profile() {
    let flags = 0o4000 | 0o2_000_000;
    // domain, type, protocol: strict, standard
    let table = [
        (1, 1, 0, Action::Allow, Action::Allow),
        (1, 5 | flags, 0, Action::Allow, Action::Allow),
        (2, 1, 0, REFUSED, Action::Allow),
        (2, 1 | flags, 6, REFUSED, Action::Allow),
        (2, 2 | flags, 17, REFUSED, Action::Allow),
        (10, 1 | flags, 0, REFUSED, Action::Allow),
        (16, 3 | flags, 0, REFUSED, Action::Allow),
        (16, 2, 0, REFUSED, Action::Allow),
        (16, 3, 9, REFUSED, REFUSED),  // audit
        (16, 3, 16, REFUSED, REFUSED), // generic netlink
        (2, 3, 1, REFUSED, REFUSED),   // raw
        (2, 3 | flags, 0, REFUSED, REFUSED),
        (2, 2, 1, REFUSED, REFUSED),    // ping
        (2, 10, 768, REFUSED, REFUSED), // SOCK_PACKET
        (2, 10, 0, REFUSED, REFUSED),
        (2, 1, 132, REFUSED, REFUSED), // SCTP
        (2, 1, 262, REFUSED, REFUSED), // multipath TCP
        (2, 5, 0, REFUSED, REFUSED),
        (2, 6, 0, REFUSED, REFUSED),  // DCCP
        (17, 3, 0, REFUSED, REFUSED), // packet
        (31, 3, 0, REFUSED, REFUSED), // bluetooth
        (38, 5, 0, REFUSED, REFUSED), // kernel crypto
        (40, 1, 0, REFUSED, REFUSED), // virtual machine
        (44, 3, 0, REFUSED, REFUSED), // express data path
        (0x1_0000_0011, 3, 0, REFUSED, REFUSED),
    ];
    for architecture in BOTH {
        for (domain, kind, protocol, strict, standard) in table {
            let arguments = [domain, kind, protocol];
            for (profile, expected) in [
                (Profile::Strict, strict),
                (Profile::StrictFiles, strict),
                (Profile::StrictNet, standard),
                (Profile::Standard, standard),
                (Profile::StandardNet, standard),
            ] {
                let action = ask(profile, architecture, "socket", &arguments);
                assert_eq!(action, expected, "{profile:?} {arguments:?}");
            }
        }
        for profile in PROFILES {
            let action = ask(profile, architecture, "socketpair", &[1, 1]);
            assert_eq!(action, Action::Allow);
            let action = ask(profile, architecture, "socketpair", &[38, 5]);
            assert_eq!(action, REFUSED);
        }
    }
}

#[test]
fn every_type_of_socket_is_decided() {
    for kind in 0..16 {
        let expected = if [1, 2].contains(&kind) {
            Action::Allow
        } else {
            REFUSED
        };
        let action = ask(
            Profile::Standard,
            Architecture::X86_64,
            "socket",
            &[2, kind, 0],
        );
        assert_eq!(action, expected, "type {kind}");
    }
}

#[test]
fn nobody_types_into_terminals_whatever_the_high_half_says() {
    for architecture in BOTH {
        for profile in PROFILES {
            for request in [0x5412, 0x541c, 0x5423] {
                for high in [0, 1 << 32, u64::MAX << 32] {
                    let action = ask(profile, architecture, "ioctl", &[0, request | high]);
                    assert_eq!(action, REFUSED);
                }
            }
            let size = ask(profile, architecture, "ioctl", &[0, 0x5413]);
            assert_eq!(size, Action::Allow);
        }
    }
}

#[test]
fn personality_can_only_be_asked() {
    for architecture in BOTH {
        for profile in PROFILES {
            for (value, expected) in [
                (0, Action::Allow),
                (0xffff_ffff, Action::Allow),
                (0x0004_0000, REFUSED), // no random addresses
                (0x0040_0000, REFUSED), // reading means executing
                (8, REFUSED),
            ] {
                let action = ask(profile, architecture, "personality", &[value]);
                assert_eq!(action, expected, "{value:x}");
            }
        }
    }
}

#[test]
fn strict_opens_only_to_read() {
    for architecture in BOTH {
        for (flags, expected) in [
            (0, Action::Allow),
            (0o2_000_000, Action::Allow),
            (0o1, REFUSED),
            (0o2, REFUSED),
            (0o3, REFUSED),
            (0o100, REFUSED),
            (0o1000, REFUSED),
            (0o20_200_002, REFUSED),
        ] {
            let action = ask(Profile::Strict, architecture, "openat", &[0, 0, flags]);
            assert_eq!(action, expected, "{flags:o}");
            let action = ask(Profile::StrictFiles, architecture, "openat", &[0, 0, flags]);
            assert_eq!(action, Action::Allow);
        }
        for call in ["mkdirat", "unlinkat", "renameat2", "openat2", "truncate"] {
            assert_eq!(ask(Profile::Strict, architecture, call, &[]), UNKNOWN);
            let action = ask(Profile::StrictFiles, architecture, call, &[]);
            assert_eq!(action, Action::Allow, "{call}");
        }
    }
}

#[test]
fn without_namespaces_nothing_is_shared_with_the_host() {
    for architecture in BOTH {
        for profile in PROFILES {
            let filter = Filter::compile_alone(profile, architecture).unwrap();
            let ask = |call: &str, arguments| {
                interpret(
                    &filter,
                    architecture,
                    architecture.number(call).unwrap(),
                    arguments,
                )
            };
            for domain in [1, 2, 10, 16] {
                assert_eq!(ask("socket", [domain, 1, 0, 0, 0, 0]), REFUSED);
            }
            assert_eq!(ask("socketpair", [1, 1, 0, 0, 0, 0]), Action::Allow);
            for call in ["shmget", "semget", "msgget", "mq_open"] {
                assert_eq!(ask(call, NOTHING), REFUSED);
            }
            assert_eq!(ask("prlimit64", NOTHING), Action::Allow);
            assert_eq!(ask("prlimit64", [1, 0, 0, 0, 0, 0]), REFUSED);
            assert_eq!(ask("setpriority", [0, 1, 0, 0, 0, 0]), REFUSED);
        }
    }
}

#[test]
fn a_sealed_worker_computes_and_dies_of_anything_else() {
    for architecture in BOTH {
        let filter = Filter::compile_seal(architecture).unwrap();
        let ask = |call: &str, arguments| {
            interpret(
                &filter,
                architecture,
                architecture.number(call).unwrap(),
                arguments,
            )
        };
        for call in ["read", "write", "mmap", "futex", "exit_group", "prlimit64"] {
            assert_eq!(ask(call, NOTHING), Action::Allow, "{call}");
        }
        assert_eq!(ask("clone", [0x003d_0f00, 0, 0, 0, 0, 0]), Action::Allow);
        assert_eq!(ask("clone", [17, 0, 0, 0, 0, 0]), Action::KillProcess);
        for call in [
            "openat", "execve", "execveat", "socket", "connect", "ptrace", "mount", "unshare",
        ] {
            assert_eq!(ask(call, NOTHING), Action::KillProcess, "{call}");
        }
    }
}

#[test]
fn a_program_that_is_not_understood_ends_the_process() {
    let mut filter = Filter::compile(Profile::Strict, Architecture::X86_64).unwrap();
    filter.program[0].code = 0xffff;
    let action = interpret(&filter, Architecture::X86_64, 0, NOTHING);
    assert_eq!(action, Action::KillProcess);
    filter.program.clear();
    let action = interpret(&filter, Architecture::X86_64, 0, NOTHING);
    assert_eq!(action, Action::KillProcess);
}

#[test]
fn searching_takes_few_steps_and_little_room() {
    for architecture in BOTH {
        for profile in PROFILES {
            let filter = Filter::compile(profile, architecture).unwrap();
            assert!(filter.program.len() < 700, "{}", filter.program.len());
        }
    }
}

mod oracle;
