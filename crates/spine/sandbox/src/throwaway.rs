//! A sandbox to be thrown away: where a guard may be left out.
//!
//! It has namespaces, mounts of its own and nothing of the host to lose: no
//! project, no state, a user that owns nothing. It has no system-call filter,
//! no Landlock and an unmasked `/proc`, because sandboxes are made inside it.
//! What is attacked in it is its own stage. Only proofs and tests start one,
//! as `worker throwaway PROGRAM…`; nothing in the product's way does.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use fluffy_base::ByteSize;
use rustix::process::{Pid, WaitOptions};
use rustix::thread::CapabilitySets;

use crate::guard::{Guard, Guards, THROWAWAY};
use crate::plan::{HOME, Host, INSIDE_ID, Mount};
use crate::sys::linux::call::{self, Forked};
use crate::sys::linux::{mounts, privileges};

/// Where the running executable is seen inside.
pub const INSIDE_PROGRAM: &str = "/run/fluffy";
/// Owns nothing on any Linux host.
const NOBODY: u32 = 65_534;

/// Runs a command in a throwaway sandbox and returns its exit code. In the
/// command `@self` stands for the running executable.
///
/// # Errors
/// When the sandbox cannot be made; then nothing ran.
pub fn run(command: &[String]) -> io::Result<i32> {
    let anchor = std::env::temp_dir().join(format!("fluffy-throwaway-{}", std::process::id()));
    fs::create_dir(&anchor)?;
    // The user inside must be able to reach it.
    fs::set_permissions(&anchor, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let ran = make(&anchor, command);
    let _ = fs::remove_dir(&anchor);
    ran
}

fn make(anchor: &Path, command: &[String]) -> io::Result<i32> {
    let program = std::env::current_exe()?;
    let host = Host::probe();
    let (go, wait) = std::io::pipe().map(|(read, write)| (write, read))?;
    let outer = match rustix::process::geteuid().as_raw() {
        0 => (NOBODY, NOBODY),
        uid => (uid, rustix::process::getegid().as_raw()),
    };
    match call::fork(call::NAMESPACES)? {
        Forked::Parent { pid, .. } => {
            let mapped = map(pid, outer);
            drop(wait);
            mapped.and_then(|()| io::Write::write_all(&mut &go, b"go"))?;
            drop(go);
            wait_for(pid)
        }
        Forked::Child => {
            drop(go);
            let mut word = [0_u8; 2];
            let went = io::Read::read_exact(&mut &wait, &mut word)
                // Opened in the new mount namespace, and before the user
                // changes, who may not be able to find it.
                .and_then(|()| fs::File::open(&program))
                .and_then(|program| {
                    become_nobody()?;
                    build(anchor, &host, &program.into())
                })
                .and_then(|()| call::loopback_up())
                .and_then(|()| run_inside(command));
            match went {
                Ok(code) => call::exit_now(code),
                Err(error) => {
                    crate::worker::complain("no throwaway sandbox", &error);
                    call::exit_now(125)
                }
            }
        }
    }
}

fn map(pid: Pid, (uid, gid): (u32, u32)) -> io::Result<()> {
    let file = |name: &str| format!("/proc/{}/{name}", pid.as_raw_nonzero());
    fs::write(file("setgroups"), "deny")?;
    fs::write(file("uid_map"), format!("{INSIDE_ID} {uid} 1\n"))?;
    fs::write(file("gid_map"), format!("{INSIDE_ID} {gid} 1\n"))
}

/// Becomes the one user there is, and keeps what building needs.
fn become_nobody() -> io::Result<()> {
    rustix::thread::set_keep_capabilities(true)?;
    call::become_user(INSIDE_ID, INSIDE_ID)?;
    let all = rustix::thread::capabilities(None)?.permitted;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: all,
            permitted: all,
            inheritable: rustix::thread::CapabilitySet::empty(),
        },
    )?;
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    privileges::open_to_own_user()
}

fn build(anchor: &Path, host: &Host, program: &OwnedFd) -> io::Result<()> {
    let own = PathBuf::from(format!("/proc/self/fd/{}", program.as_raw_fd()));
    let mut list = host.mounts();
    list.extend([Mount::Devices, Mount::Processes]);
    list.extend(
        [
            "/tmp",
            "/var/tmp",
            "/run",
            "/dev/shm",
            "/home",
            "/opt",
            "/etc/cron.d",
        ]
        .map(|inside| Mount::Scratch {
            inside: inside.into(),
            size: ByteSize(2 << 30),
            inodes: 200_000,
        }),
    );
    // At home in a sandbox that lacks a home of its own.
    list.push(Mount::Directory {
        inside: HOME.into(),
    });
    list.push(Mount::ReadOnly {
        host: own,
        inside: INSIDE_PROGRAM.into(),
    });
    list.push(Mount::File {
        inside: THROWAWAY.into(),
        content: String::new(),
    });
    let failed =
        |error: mounts::MountError| io::Error::other(format!("{}: {}", error.step, error.error));
    // A masked `/proc` would forbid every sandbox inside to have one.
    let without = Guards::NONE.with(Guard::ProcMasks);
    mounts::build(anchor, &list, mounts::Keep::Whole, without).map_err(failed)?;
    mounts::finish(without).map_err(failed)
}

/// Runs the command as a child: the first process has to reap.
fn run_inside(command: &[String]) -> io::Result<i32> {
    let texts = command
        .iter()
        .map(|word| {
            if word == "@self" {
                INSIDE_PROGRAM
            } else {
                word
            }
        })
        .map(|word| CString::new(word).map_err(io::Error::from))
        .collect::<io::Result<Vec<_>>>()?;
    let program = texts.first().ok_or(io::ErrorKind::InvalidInput)?.clone();
    let environment = [
        c"PATH=/usr/local/bin:/usr/bin:/bin",
        c"HOME=/tmp",
        c"TMPDIR=/tmp",
        c"LANG=C.UTF-8",
    ]
    .map(CString::from);
    let (argv, environment) = (
        call::Words::new(texts),
        call::Words::new(environment.to_vec()),
    );
    match call::fork(0)? {
        Forked::Child => {
            rustix::process::chdir("/tmp")?;
            let error = call::execute(&program, &argv, &environment);
            crate::worker::complain("the command was not started", &error);
            call::exit_now(127)
        }
        Forked::Parent { pid, .. } => wait_for(pid),
    }
}

/// Collects every child until this one has ended.
fn wait_for(wanted: Pid) -> io::Result<i32> {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == wanted => {
                return Ok(status
                    .exit_status()
                    .or_else(|| status.terminating_signal().map(|signal| 128 + signal))
                    .unwrap_or(1));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
