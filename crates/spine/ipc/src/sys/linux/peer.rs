//! Who is at the other end of a unix socket, as Linux knows it.
//!
//! A pidfd is the proof: it names one process for ever, whatever happens to
//! its number. Twin of `macos/peer.rs` and `windows/peer.rs`. Must never
//! trust a number read from `/proc` unless the pidfd was alive afterwards.
#![expect(
    unsafe_code,
    reason = "no safe wrapper offers SO_PEERPIDFD; the one call is below"
)]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

use super::stream::Stream;
use crate::peer::{IdentifyPeerError, PeerProcess, RawPeer};

/// The file system of pidfds since Linux 6.9, in `statfs`.
const PIDFS: rustix::fs::FsWord = 0x5049_4446;

/// Keeps hold of one process.
#[derive(Debug)]
pub(crate) struct ProcessHandle(OwnedFd);

pub(crate) fn identify(stream: &Stream) -> Result<RawPeer, IdentifyPeerError> {
    let system = |action| move |source| IdentifyPeerError::System { action, source };
    let credentials = stream
        .peer_cred()
        .map_err(system("read the credentials of"))?;
    let claimed = credentials.pid().filter(|pid| *pid > 0);
    let handle = match socket_pidfd(stream) {
        Ok(pidfd) => ProcessHandle(pidfd),
        // Before Linux 6.5. The number is from connect time, so a process that
        // took it over since would be held instead: see `PeerIdentity`.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            let pid = claimed.and_then(Pid::from_raw);
            let pid = pid.ok_or(IdentifyPeerError::Invisible)?;
            let opened = rustix::process::pidfd_open(pid, PidfdFlags::empty());
            ProcessHandle(opened.map_err(io::Error::from).map_err(system("hold"))?)
        }
        Err(error) => return Err(system("hold")(error)),
    };
    let process = match claimed.map(u32::try_from) {
        Some(Ok(pid)) => Some(PeerProcess {
            pid,
            start_time: handle.start_time().map_err(system("read the start of"))?,
            serial: handle.serial(),
        }),
        _ => None,
    };
    if !handle.is_running() {
        return Err(IdentifyPeerError::Gone);
    }
    Ok(RawPeer {
        process,
        uid: Some(credentials.uid()),
        gid: Some(credentials.gid()),
        handle,
    })
}

impl ProcessHandle {
    /// Whether the process has not exited; an error counts as exited.
    pub(crate) fn is_running(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // A pidfd becomes readable when its process exits.
        matches!(rustix::event::poll(&mut polled, Some(&now)), Ok(0))
    }

    /// The inode of the pidfd, where inodes of pidfds are unique.
    fn serial(&self) -> Option<u64> {
        let system = rustix::fs::fstatfs(&self.0).ok()?;
        // Older pidfds all share one anonymous inode.
        if system.f_type != PIDFS {
            return None;
        }
        rustix::fs::fstat(&self.0).ok().map(|found| found.st_ino)
    }

    /// Clock ticks from boot to the start of the process.
    ///
    /// Right only if the process runs afterwards: until it is reaped its
    /// number belongs to nobody else.
    fn start_time(&self) -> io::Result<u64> {
        let information = fs::read_to_string(format!("/proc/self/fdinfo/{}", self.0.as_raw_fd()))?;
        // The number in the namespace of this `/proc`, which need not be ours.
        let pid: u32 = information
            .lines()
            .find_map(|line| line.strip_prefix("Pid:"))
            .and_then(|pid| pid.trim().parse().ok())
            .filter(|pid| *pid > 0)
            .ok_or(io::ErrorKind::NotFound)?;
        let stat = fs::read(format!("/proc/{pid}/stat"))?;
        parse_start_time(&stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Field 22. Field 2 is the program's name and may hold anything, even `)`.
fn parse_start_time(stat: &[u8]) -> Option<u64> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let rest = std::str::from_utf8(stat.get(after_name..)?).ok()?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn socket_pidfd(stream: &Stream) -> io::Result<OwnedFd> {
    let mut pidfd: libc::c_int = -1;
    let mut size = libc::socklen_t::try_from(size_of::<libc::c_int>())
        .map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is open for as long as `stream` is borrowed; the
    // two pointers are to live locals, and `size` is the size of the first.
    let status = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut size,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    if pidfd < 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: the call succeeded, so the kernel installed a new descriptor for
    // this process which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_cannot_forge_its_start_with_its_name() {
        let fields: Vec<String> = (3..=30).map(|field| field.to_string()).collect();
        for name in ["sh", "a b", "x) S 1 1 1", ")", "\u{e9}"] {
            let stat = format!("42 ({name}) {}", fields.join(" "));
            assert_eq!(parse_start_time(stat.as_bytes()), Some(22), "{name}");
        }
        assert_eq!(parse_start_time(b"42 (sh) S 1"), None);
        assert_eq!(parse_start_time(b""), None);
        assert_eq!(parse_start_time(b")"), None);
    }

    #[test]
    fn a_handle_knows_when_its_process_ended() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        let handle = ProcessHandle(rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap());
        assert!(handle.is_running());
        assert!(handle.start_time().unwrap() > 0);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!handle.is_running());
        assert!(handle.start_time().is_err());
    }
}
