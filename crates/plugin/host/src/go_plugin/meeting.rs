//! The folder where a plugin's sockets and the host's meet.
//!
//! The plugin writes it, so nothing in it is what it seems: a name is opened
//! without following a link, looked at, and only what was looked at is used.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use tokio::net::{UnixListener, UnixStream};

/// The most names that are looked at when sockets are removed.
const MOST_NAMES: usize = 10_000;

/// An open meeting folder.
#[derive(Debug)]
pub(super) struct Meeting {
    path: PathBuf,
    folder: OwnedFd,
}

/// Why a plugin's socket is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum MeetError {
    /// Not directly in the folder.
    #[error("its socket `{}` is not directly in its own folder `{}`", socket.display(), folder.display())]
    Elsewhere { socket: PathBuf, folder: PathBuf },
    /// A link, a plain file, a device.
    #[error("its `{}` is not a socket", socket.display())]
    NoSocket { socket: PathBuf },
    /// Not there, or nobody accepts.
    #[error("its socket `{}` cannot be reached: {problem}", socket.display())]
    Unreachable { socket: PathBuf, problem: io::Error },
}

impl Meeting {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self {
            path: path.to_owned(),
            folder: rustix::fs::open(path, flags, Mode::empty())?,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Connects to a socket that the plugin named.
    pub(super) async fn connect(&self, socket: &Path) -> Result<UnixStream, MeetError> {
        let elsewhere = || MeetError::Elsewhere {
            socket: socket.to_owned(),
            folder: self.path.clone(),
        };
        let unreachable = |problem| MeetError::Unreachable {
            socket: socket.to_owned(),
            problem,
        };
        let name = socket.file_name().ok_or_else(elsewhere)?;
        if socket.parent() != Some(&self.path) {
            return Err(elsewhere());
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let found = rustix::fs::openat2(&self.folder, name, flags, Mode::empty(), resolve);
        let found = found.map_err(|error: Errno| unreachable(error.into()))?;
        let seen = rustix::fs::fstat(&found).map_err(|error| unreachable(error.into()))?;
        if FileType::from_raw_mode(seen.st_mode) != FileType::Socket {
            let socket = socket.to_owned();
            return Err(MeetError::NoSocket { socket });
        }
        // By its descriptor, so that it is the one that was looked at.
        let path = format!("/proc/self/fd/{}", found.as_raw_fd());
        UnixStream::connect(path).await.map_err(unreachable)
    }

    /// Serves on a socket of this name; says the path that the plugin sees.
    pub(super) fn listen(&self, name: &str) -> io::Result<(UnixListener, PathBuf)> {
        // Binding follows no link, and by the descriptor no path is too long.
        let inside = format!("/proc/self/fd/{}/{name}", self.folder.as_raw_fd());
        Ok((UnixListener::bind(inside)?, self.path.join(name)))
    }

    /// Removes the sockets that are left when the plugin has ended.
    pub(super) fn clear(&self) {
        let Ok(names) = rustix::fs::Dir::read_from(&self.folder) else {
            return;
        };
        for entry in names.take(MOST_NAMES).flatten() {
            if entry.file_type() == FileType::Socket {
                let _ = rustix::fs::unlinkat(&self.folder, entry.file_name(), AtFlags::empty());
            }
        }
    }
}
