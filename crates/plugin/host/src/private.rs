//! Files that only this user reads and writes, whole or not at all.
//!
//! For keys, secrets and compiled code. Never follows a link, and never takes
//! what somebody else could have written.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};

/// A folder to read and write such files in.
pub(crate) fn open(folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(folder, flags, Mode::empty())?)
}

/// The content of a plain file of ours that nobody else can read or write.
pub(crate) fn read(directory: &OwnedFd, name: &str, most: usize) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(directory, name, flags, Mode::empty())?);
    let found = file.metadata()?;
    let ours = found.is_file()
        && found.uid() == rustix::process::geteuid().as_raw()
        && found.permissions().mode() & 0o077 == 0
        && found.nlink() == 1;
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    if !ours || found.len() > most {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes a file whole or not at all.
pub(crate) fn write(
    directory: &OwnedFd,
    to: &str,
    parts: &[&[u8]],
    rename: RenameFlags,
) -> io::Result<()> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let from = format!("new-{:016x}", u64::from_be_bytes(random));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let mut file = File::from(rustix::fs::openat(directory, &from, flags, mode)?);
    let written = parts
        .iter()
        .try_for_each(|part| file.write_all(part))
        .and_then(|()| file.sync_all())
        .and_then(|()| {
            let done = rustix::fs::renameat_with(directory, &from, directory, to, rename);
            done.map_err(io::Error::from)
        });
    if written.is_err() {
        let _ = rustix::fs::unlinkat(directory, &from, AtFlags::empty());
    }
    written
}
