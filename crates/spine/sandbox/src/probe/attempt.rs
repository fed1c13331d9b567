//! Tries in a child what an engine does, and says where it was stopped.
//!
//! The child allocates nothing and is ended before this returns: it is a copy
//! of a process that may have other threads. What it mounts is gone with its
//! namespaces. Next: `cause` explains where it was stopped.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::{Signal, WaitId, WaitIdOptions};

use crate::guard::Guards;
use crate::seccomp::Filter;
use crate::sys::linux::call::{self, Forked};
use crate::sys::linux::privileges;
use crate::wall::Wall;

/// How long a child may take.
const PATIENCE: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// A step of making a sandbox, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Step {
    Namespaces,
    Map,
    Mount,
    Processes,
    Overlay,
}

/// Where a child was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stopped {
    pub(super) step: Step,
    pub(super) errno: i32,
}

/// What works in a native sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Native {
    /// The error number, if an overlay cannot be mounted.
    pub(super) overlay: Option<i32>,
}

/// Makes namespaces and mounts, as the native engine does.
pub(super) fn native() -> Result<Native, Stopped> {
    let stopped = |error: io::Error| Stopped {
        step: Step::Namespaces,
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    };
    let maps = Maps::new();
    let said = in_child(call::NAMESPACES, |pipe| {
        say(pipe, build(&maps));
    })
    .map_err(stopped)?;
    understand(said)
}

fn say(pipe: &OwnedFd, built: Result<(), (Step, Errno)>) {
    let (step, errno) = match built {
        Ok(()) => (DONE, 0),
        Err((step, error)) => (step as u8, error.raw_os_error()),
    };
    let [low, high, ..] = errno.to_le_bytes();
    let _ = rustix::io::write(pipe, &[step, low, high]);
}

fn understand([step, low, high]: [u8; 3]) -> Result<Native, Stopped> {
    let errno = i32::from(u16::from_le_bytes([low, high]));
    match [Step::Map, Step::Mount, Step::Processes, Step::Overlay]
        .into_iter()
        .find(|known| *known as u8 == step)
    {
        Some(Step::Overlay) => Ok(Native {
            overlay: Some(errno),
        }),
        Some(step) => Err(Stopped { step, errno }),
        None => Ok(Native { overlay: None }),
    }
}

/// Puts wall and filter over a child.
pub(super) fn reduced(wall: &Wall, filter: &Filter) -> io::Result<()> {
    let [failed, low, high] = in_child(0, |pipe| {
        let done = privileges::lower_bounds(Guards::NONE)
            .and_then(|()| privileges::drop_capabilities(Guards::NONE))
            .and_then(|()| wall.enforce())
            .and_then(|()| filter.install());
        let errno = match &done {
            Ok(()) => 0,
            Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
        };
        let [low, high, ..] = errno.to_le_bytes();
        let _ = rustix::io::write(pipe, &[u8::from(done.is_err()), low, high]);
    })?;
    match failed {
        0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(i32::from(u16::from_le_bytes(
            [low, high],
        )))),
    }
}

const DONE: u8 = u8::MAX;

/// The child's own lines of its maps of users and groups.
struct Maps {
    user: String,
    group: String,
}

impl Maps {
    fn new() -> Self {
        let inside = crate::plan::INSIDE_ID;
        Self {
            user: format!("{inside} {} 1", rustix::process::geteuid().as_raw()),
            group: format!("{inside} {} 1", rustix::process::getegid().as_raw()),
        }
    }
}

type Errno = rustix::io::Errno;

fn build(maps: &Maps) -> Result<(), (Step, Errno)> {
    let at = |step| move |error| (step, error);
    write(c"/proc/self/setgroups", b"deny").map_err(at(Step::Map))?;
    write(c"/proc/self/uid_map", maps.user.as_bytes()).map_err(at(Step::Map))?;
    write(c"/proc/self/gid_map", maps.group.as_bytes()).map_err(at(Step::Map))?;
    mount_scratch().map_err(at(Step::Mount))?;
    mount_processes().map_err(at(Step::Processes))?;
    mount_overlay().map_err(at(Step::Overlay))
}

fn write(path: &CStr, text: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::io::write(file, text).map(|_| ())
}

fn mount_scratch() -> Result<(), Errno> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change(c"/", private)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(c"tmpfs", c"/tmp", c"tmpfs", flags, c"size=1m")?;
    for name in [c"/tmp/p", c"/tmp/l", c"/tmp/u", c"/tmp/w", c"/tmp/m"] {
        rustix::fs::mkdir(name, Mode::RWXU)?;
    }
    Ok(())
}

fn mount_processes() -> Result<(), Errno> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount(c"proc", c"/tmp/p", c"proc", flags, c"")
}

fn mount_overlay() -> Result<(), Errno> {
    let options = c"userxattr,lowerdir=/tmp/l,upperdir=/tmp/u,workdir=/tmp/w";
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(c"overlay", c"/tmp/m", c"overlay", flags, options)
}

/// Runs this in a child and returns the three bytes that it wrote.
fn in_child(namespaces: i32, run: impl FnOnce(&OwnedFd)) -> io::Result<[u8; 3]> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    match call::fork(namespaces)? {
        Forked::Child => {
            run(&writer);
            call::exit_now(0)
        }
        Forked::Parent { pidfd, .. } => {
            drop(writer);
            let said = hear(&reader);
            // It has said all, or never will.
            let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
            let _ = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
            said
        }
    }
}

fn hear(reader: &OwnedFd) -> io::Result<[u8; 3]> {
    let mut polled = [PollFd::new(reader, PollFlags::IN)];
    if rustix::event::poll(&mut polled, Some(&PATIENCE))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut said = [0_u8; 3];
    // Three bytes go through a pipe at once.
    match rustix::io::read(reader, &mut said)? {
        3 => Ok(said),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Reach;
    use crate::seccomp::Architecture;
    use crate::template::Profile;

    #[test]
    fn a_child_that_says_nothing_is_an_error() {
        let silent = in_child(0, |_| ());
        assert_eq!(silent.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let said = in_child(0, |pipe| {
            rustix::io::write(pipe, &[1, 2, 3]).unwrap();
        });
        assert_eq!(said.unwrap(), [1, 2, 3]);
    }

    #[test]
    fn mounts_of_an_attempt_are_gone_with_it() {
        let _ = native();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(" /tmp/p "), "{mounts}");
    }

    #[test]
    fn a_refused_step_is_named() {
        // Without a user namespace of its own the maps are written already.
        let maps = Maps::new();
        let said = in_child(0, |pipe| say(pipe, build(&maps))).unwrap();
        let stopped = understand(said).unwrap_err();
        assert_eq!(stopped.step, Step::Map);
        assert!(stopped.errno > 0);
        let overlay = understand([Step::Overlay as u8, 1, 0]).unwrap();
        assert_eq!(overlay.overlay, Some(1));
        assert_eq!(understand([DONE, 0, 0]).unwrap().overlay, None);
    }

    #[test]
    fn wall_and_filter_hold_together() {
        let wall = Wall::prepare_alone(&Reach::default()).unwrap();
        let filter = Filter::compile_alone(Profile::Strict, Architecture::native()).unwrap();
        reduced(&wall, &filter).unwrap();
    }
}
