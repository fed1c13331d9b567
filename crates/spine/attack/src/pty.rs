//! A terminal as a user has one, to see what gets typed into it.
//!
//! Raw, so that text arrives as it was written. Must never be the terminal
//! of the real user.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

/// A terminal of our own.
#[derive(Debug)]
pub(crate) struct Terminal {
    screen: OwnedFd,
    line: File,
}

impl Terminal {
    /// Opens a new terminal.
    pub(crate) fn open() -> io::Result<Self> {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&screen)?;
        unlockpt(&screen)?;
        let name = ptsname(&screen, Vec::new())?;
        let line = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOCTTY)
            .open(name.to_string_lossy().as_ref())?;
        let mut settings = tcgetattr(&line)?;
        settings.make_raw();
        tcsetattr(&line, OptionalActions::Now, &settings)?;
        Ok(Self { screen, line })
    }

    /// The side on which a program's output appears.
    pub(crate) fn screen(&self) -> BorrowedFd<'_> {
        self.screen.as_fd()
    }

    /// The side that programs have as their streams.
    pub(crate) fn copy(&self) -> io::Result<OwnedFd> {
        Ok(self.line.try_clone()?.into())
    }

    /// What the next program to read from this terminal would get.
    pub(crate) fn pending_input(&self) -> Vec<u8> {
        let mut buffer = vec![0_u8; 4096];
        if rustix::io::ioctl_fionbio(&self.line, true).is_err() {
            return Vec::new();
        }
        let length = rustix::io::read(&self.line, &mut buffer).unwrap_or_default();
        buffer.truncate(length);
        buffer
    }
}
