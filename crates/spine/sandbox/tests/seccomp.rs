//! Filters put over real processes: the kernel must decide as the interpreter
//! does, and real programs must still run.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests that fork and make raw system calls"
)]

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output};

use fluffy_sandbox::seccomp::{Action, Architecture, Filter, interpret, seal};
use fluffy_sandbox::template::Profile;

const PROFILES: [Profile; 4] = [
    Profile::Strict,
    Profile::StrictFiles,
    Profile::Standard,
    Profile::StandardNet,
];

/// Calls that are harmless with these arguments whatever is decided.
const TRIED: &[(&str, [u64; 6])] = &[
    ("acct", [1, 0, 0, 0, 0, 0]),
    ("add_key", [0; 6]),
    ("bpf", [u64::MAX, 0, 0, 0, 0, 0]),
    ("clone3", [0; 6]),
    ("finit_module", [u64::MAX, 0, 0, 0, 0, 0]),
    ("fsopen", [0; 6]),
    ("getpid", [0; 6]),
    ("io_uring_setup", [0; 6]),
    ("ioctl", [u64::MAX, 0x5412, 0, 0, 0, 0]),
    ("ioctl", [u64::MAX, 0x1_0000_5412, 0, 0, 0, 0]),
    ("ioctl", [u64::MAX, 0x5413, 0, 0, 0, 0]),
    ("kcmp", [0; 6]),
    ("kexec_load", [0, u64::MAX, 0, u64::MAX, 0, 0]),
    ("keyctl", [u64::MAX, 0, 0, 0, 0, 0]),
    ("mkdirat", [0; 6]),
    ("mount", [0; 6]),
    ("move_mount", [0; 6]),
    ("name_to_handle_at", [0; 6]),
    ("open_by_handle_at", [0; 6]),
    ("open_tree", [0; 6]),
    ("perf_event_open", [0; 6]),
    ("personality", [0xffff_ffff, 0, 0, 0, 0, 0]),
    ("personality", [0x0040_0000, 0, 0, 0, 0, 0]),
    ("pidfd_getfd", [u64::MAX, 0, 0, 0, 0, 0]),
    ("pivot_root", [0; 6]),
    ("prctl", [35, 0, 0, 0, 0, 0]),
    ("process_vm_readv", [0; 6]),
    ("process_vm_writev", [0; 6]),
    ("ptrace", [u64::MAX, 0, 0, 0, 0, 0]),
    ("quotactl", [0; 6]),
    ("reboot", [0; 6]),
    ("request_key", [0; 6]),
    ("setns", [u64::MAX, 0, 0, 0, 0, 0]),
    ("shmget", [0; 6]),
    ("socket", [1, 1, 0, 0, 0, 0]),
    ("socket", [2, 1, 0, 0, 0, 0]),
    ("socket", [2, 3, 1, 0, 0, 0]),
    ("socket", [16, 3, 0, 0, 0, 0]),
    ("socket", [16, 3, 9, 0, 0, 0]),
    ("socket", [17, 3, 0, 0, 0, 0]),
    ("socket", [38, 5, 0, 0, 0, 0]),
    ("swapon", [0; 6]),
    ("syslog", [u64::MAX, 0, 0, 0, 0, 0]),
    ("umount2", [0; 6]),
    ("unshare", [0; 6]),
    ("userfaultfd", [u64::MAX, 0, 0, 0, 0, 0]),
];

/// Runs in a child; its answer is the code it leaves with.
fn child(run: impl FnOnce() -> i32) -> std::process::ExitStatus {
    // SAFETY: the child makes system calls and leaves without unwinding.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            let code = run();
            libc::_exit(code);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        std::process::ExitStatus::from_raw(status)
    }
}

/// Makes a call; its answer is the error number, nought for none.
fn call(number: u32, arguments: [u64; 6]) -> i32 {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the arguments are those of `TRIED`: no pointer of ours in them.
    unsafe {
        if libc::syscall(libc::c_long::from(number), a, b, c, d, e, f) == -1 {
            *libc::__errno_location()
        } else {
            0
        }
    }
}

#[test]
fn the_kernel_decides_as_the_interpreter() {
    let native = Architecture::native();
    for profile in PROFILES {
        let filter = Filter::compile(profile, native).unwrap();
        for (name, arguments) in TRIED {
            let number = native.number(name).unwrap();
            let status = child(|| match filter.install() {
                Ok(()) => call(number, *arguments),
                Err(_) => 255,
            });
            let got = status.code().unwrap();
            match interpret(&filter, native, number, *arguments) {
                Action::Errno(errno) => assert_eq!(got, errno, "{profile:?} {name}"),
                // Its own errors are others than those of a filter.
                Action::Allow => assert!(
                    ![libc::EPERM, libc::ENOSYS, 255].contains(&got),
                    "{profile:?} {name} {arguments:?} {got}"
                ),
                Action::KillProcess => panic!("{profile:?} {name}"),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_32_bit_call_ends_the_process() {
    for profile in PROFILES {
        let filter = Filter::compile(profile, Architecture::native()).unwrap();
        let status = child(|| {
            if filter.install().is_err() {
                return 255;
            }
            let answer: u32;
            // SAFETY: number 20 asks for the process's id and touches nothing.
            unsafe {
                std::arch::asm!("int 0x80", inlateout("eax") 20_u32 => answer);
            }
            i32::from(answer == 0)
        });
        // Kernels without 32-bit calls end it too, in their own way.
        let ended = [Some(libc::SIGSYS), Some(libc::SIGSEGV)];
        assert!(ended.contains(&status.signal()), "{profile:?} {status}");
    }
}

#[test]
fn a_sealed_process_goes_on_but_opens_nothing() {
    let goes_on = child(|| {
        if seal().is_err() {
            return 255;
        }
        let numbers: Vec<u64> = (0..100_000).collect();
        i32::from(numbers.iter().sum::<u64>() != 4_999_950_000)
    });
    assert_eq!(goes_on.code(), Some(0));
    let opens = child(|| match seal() {
        Ok(()) => i32::from(std::fs::File::open("/dev/null").is_ok()),
        Err(_) => 255,
    });
    assert_eq!(opens.signal(), Some(libc::SIGSYS));
    let starts = child(|| match seal() {
        Ok(()) => i32::from(Command::new("/bin/true").spawn().is_ok()),
        Err(_) => 255,
    });
    assert_eq!(starts.signal(), Some(libc::SIGSYS));
}

/// A program under a profile, in an empty directory.
fn under(profile: Profile, program: &str, arguments: &[&str]) -> Option<Output> {
    let filter = Filter::compile(profile, Architecture::native()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(directory.path())
        .env("GIT_CONFIG_NOSYSTEM", "1");
    // SAFETY: installing allocates nothing.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            filter.install()
        });
    }
    match command.output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("{program}: {error}"),
    }
}

const GIT: &str = "git init -q . && echo text > file && git add file && \
    git -c user.name=n -c user.email=e@e commit -qm first && git mv file other && \
    git log --oneline && git gc -q && git status --porcelain";
const RUST: &str = "echo 'fn main() { \
    let all: u32 = (0..4).map(|n| std::thread::spawn(move || n)).map(|t| t.join().unwrap()).sum(); \
    println!(\"{all}\") }' > a.rs && rustc a.rs -o a && test \"$(./a)\" = 6";
const PYTHON: &str = "
import os, socket, subprocess, multiprocessing, threading, tempfile, asyncio
from multiprocessing import shared_memory
listener = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept(); client.sendall(b'x'); assert server.recv(1) == b'x'
assert subprocess.check_output(['echo', 'y']) == b'y\\n'
with multiprocessing.get_context('fork').Pool(2) as pool: assert pool.map(abs, [-1, 2]) == [1, 2]
memory = shared_memory.SharedMemory(create=True, size=16); memory.close(); memory.unlink()
thread = threading.Thread(target=lambda: None); thread.start(); thread.join()
asyncio.run(asyncio.sleep(0))
assert socket.if_nameindex()
";
const NODE: &str = "
const os = require('os'), fs = require('fs'), net = require('net'), w = require('worker_threads');
os.networkInterfaces(); fs.writeFileSync('x', 'y'); fs.copyFileSync('x', 'z');
require('child_process').execFileSync('true');
new w.Worker('0', { eval: true }).on('exit', (code) => {
  const server = net.createServer((s) => s.end('x')).listen(0, '127.0.0.1', () =>
    net.connect(server.address().port).on('data', () => server.close()));
  if (code) process.exit(code);
});
";

#[test]
fn real_programs_run_under_standard() {
    let programs: &[(&str, &[&str])] = &[
        (
            "bash",
            &[
                "-c",
                "set -e; (echo a | sort > f); mkfifo p; cat f & wait; ulimit -n; kill -0 $$; test -n \"$(ls)\"",
            ],
        ),
        ("sh", &["-c", GIT]),
        ("sh", &["-c", RUST]),
        ("python3", &["-c", PYTHON]),
        ("node", &["-e", NODE]),
        ("npm", &["--version"]),
        ("java", &["-version"]),
        ("go", &["version"]),
        ("make", &["--version"]),
        ("tar", &["-cf", "a.tar", "--files-from=/dev/null"]),
        ("openssl", &["version"]),
    ];
    let mut ran = 0;
    for profile in [Profile::Standard, Profile::StandardNet] {
        for (program, arguments) in programs {
            let Some(output) = under(profile, program, arguments) else {
                continue;
            };
            ran += 1;
            assert!(
                output.status.success(),
                "{program} {arguments:?}: {}\n{}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    assert!(ran >= 4, "not even a shell was found");
}

#[test]
fn strict_runs_one_program_that_starts_no_other() {
    for profile in [Profile::Strict, Profile::StrictFiles] {
        let output = under(profile, "true", &[]).unwrap();
        assert!(output.status.success());
        let output = under(profile, "sh", &["-c", "ls; true"]).unwrap();
        assert!(!output.status.success());
    }
    let output = under(Profile::Strict, "sh", &["-c", "echo x > file"]).unwrap();
    assert!(!output.status.success());
    let output = under(Profile::StrictFiles, "sh", &["-c", "echo x > file"]).unwrap();
    assert!(output.status.success());
}
