//! A unix socket that only we can reach, and that only we can replace.
//!
//! The directory is ours, 0700 and no symlink; a lock beside the socket decides
//! who may serve it; everything after the check goes through the directory's
//! descriptor. Must never unlink a socket that answers, or one that is not ours.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use tokio::net::UnixListener;

use super::stream::Stream;
use crate::listener::BindError;

/// The longest path that fits a socket address with its closing zero byte.
const MAX_PATH: usize = longest_path();

const fn longest_path() -> usize {
    // `sun_path` has 108 bytes on Linux and 104 on macOS.
    size_of::<libc::sockaddr_un>() - std::mem::offset_of!(libc::sockaddr_un, sun_path) - 1
}

/// The listening socket; its file goes away with it.
pub(crate) struct RawListener {
    socket: UnixListener,
    directory: OwnedFd,
    name: OsString,
    made: Stat,
    // Released by the kernel with the descriptor, even after a crash.
    _lock: OwnedFd,
}

impl RawListener {
    pub(crate) fn bind(path: &Path) -> Result<Self, BindError> {
        let (parent, name) = parts(path)?;
        let directory = open_directory(path, &parent)?;
        let lock = take_lock(path, &directory, &name)?;
        remove_stale(path, &directory, &name)?;
        let socket = UnixListener::bind(path).map_err(system(path, "bind"))?;
        let made = secure(path, &directory, &name)?;
        check_same_directory(path, &parent, &directory)?;
        Ok(Self {
            socket,
            directory,
            name,
            made,
            _lock: lock,
        })
    }

    pub(crate) async fn accept(&mut self) -> io::Result<Stream> {
        self.socket.accept().await.map(|(stream, _)| stream)
    }
}

impl fmt::Debug for RawListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawListener")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

impl Drop for RawListener {
    fn drop(&mut self) {
        let found = rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        // Only the file we made; if it cannot go, the next start replaces it.
        if found.is_ok_and(|found| is_same_file(&found, &self.made)) {
            let _ = rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}

fn parts(path: &Path) -> Result<(PathBuf, OsString), BindError> {
    let length = path.as_os_str().len();
    if length > MAX_PATH {
        return Err(BindError::PathTooLong {
            path: path.to_owned(),
            length,
            limit: MAX_PATH,
        });
    }
    let name = path.file_name().filter(|_| path.is_absolute());
    match (path.parent(), name) {
        (Some(parent), Some(name)) => Ok((parent.to_owned(), name.to_owned())),
        _ => Err(BindError::NotAbsolute {
            path: path.to_owned(),
        }),
    }
}

fn open_directory(path: &Path, parent: &Path) -> Result<OwnedFd, BindError> {
    match rustix::fs::mkdirat(CWD, parent, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(system(path, "create the directory of")(error)),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(parent, flags, Mode::empty());
    let unsafe_because = |why| BindError::UnsafeDirectory {
        directory: parent.to_owned(),
        why,
    };
    let directory = match opened {
        Ok(directory) => directory,
        // Linux says "not a directory" of a symlink here, macOS "too many links".
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return Err(unsafe_because("it is a symlink or not a directory"));
        }
        Err(error) => return Err(system(path, "open the directory of")(error)),
    };
    let found = rustix::fs::fstat(&directory).map_err(system(path, "inspect the directory of"))?;
    if found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(unsafe_because("it belongs to another user"));
    }
    let mode = Mode::from_raw_mode(found.st_mode);
    if mode.intersects(Mode::WGRP | Mode::WOTH) {
        return Err(unsafe_because("others may write in it"));
    }
    if mode.intersects(Mode::RWXG | Mode::RWXO) {
        return Err(unsafe_because("others may look into it"));
    }
    Ok(directory)
}

/// Whoever holds the lock may replace the socket; nobody else tries.
fn take_lock(path: &Path, directory: &OwnedFd, name: &OsStr) -> Result<OwnedFd, BindError> {
    let mut lock_name = name.to_owned();
    lock_name.push(".lock");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = rustix::fs::openat(directory, lock_name, flags, Mode::RUSR | Mode::WUSR)
        .map_err(system(path, "open the lock of"))?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => Err(BindError::InUse {
            path: path.to_owned(),
        }),
        Err(error) => Err(system(path, "lock")(error)),
    }
}

fn remove_stale(path: &Path, directory: &OwnedFd, name: &OsStr) -> Result<(), BindError> {
    let found = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(system(path, "inspect")(error)),
    };
    let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
    if !is_socket || found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(BindError::NotOurSocket {
            path: path.to_owned(),
        });
    }
    match probe(path) {
        Err(Errno::CONNREFUSED) => {
            rustix::fs::unlinkat(directory, name, AtFlags::empty()).map_err(system(path, "unlink"))
        }
        // It answers, or we cannot tell: both mean hands off.
        _ => Err(BindError::InUse {
            path: path.to_owned(),
        }),
    }
}

/// Connects without waiting, so that a server with a full backlog is no trap.
fn probe(path: &Path) -> Result<(), Errno> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    rustix::fs::fcntl_setfl(&socket, OFlags::NONBLOCK)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

/// Closes the socket to others and proves that it is where we looked.
fn secure(path: &Path, directory: &OwnedFd, name: &OsStr) -> Result<Stat, BindError> {
    rustix::fs::chmodat(directory, name, Mode::RUSR | Mode::WUSR, AtFlags::empty())
        .map_err(system(path, "close to others"))?;
    let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(system(path, "inspect"))?;
    let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
    if !is_socket || found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(BindError::NotOurSocket {
            path: path.to_owned(),
        });
    }
    Ok(found)
}

/// The path must still lead to the directory that was checked.
fn check_same_directory(path: &Path, parent: &Path, checked: &OwnedFd) -> Result<(), BindError> {
    let now = rustix::fs::statat(CWD, parent, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(system(path, "inspect the directory of"))?;
    let then = rustix::fs::fstat(checked).map_err(system(path, "inspect the directory of"))?;
    if is_same_file(&now, &then) {
        return Ok(());
    }
    Err(BindError::UnsafeDirectory {
        directory: parent.to_owned(),
        why: "it was replaced while the socket was made",
    })
}

fn is_same_file(one: &Stat, other: &Stat) -> bool {
    one.st_dev == other.st_dev && one.st_ino == other.st_ino
}

fn system<E: Into<io::Error>>(path: &Path, action: &'static str) -> impl Fn(E) -> BindError {
    move |error| BindError::System {
        action,
        path: path.to_owned(),
        source: error.into(),
    }
}
