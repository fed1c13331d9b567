//! Writing durably: into the store by path, into trees by descriptor.
//!
//! Never opens a name that already exists for writing, and never writes through
//! a link. What must survive a crash is synced before it is renamed into place.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags, SeekFrom as Span, fstatvfs, ioctl_ficlone, openat, seek};
use rustix::io::Errno;

use crate::error::{Explain, FileError};

/// The part of a disk that is never used up: the less of 1 GiB and 5%.
const RESERVE: u64 = 1 << 30;

/// Makes a directory that only its owner can enter; one that exists is fine.
pub(crate) fn make_private_directory(path: &Path) -> Result<(), FileError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .at("make", path)
}

/// Puts a whole file in place: the old one or the new one, never a part.
pub(crate) fn write_record(directory: &Path, name: &str, bytes: &[u8]) -> Result<(), FileError> {
    let temporary = directory.join(format!(".{name}.new"));
    let target = directory.join(name);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .at("write", &temporary)?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .at("write", &temporary)?;
    fs::rename(&temporary, &target).at("replace", &target)?;
    sync_directory(directory)
}

/// Makes names that came or went in a directory of the store durable.
pub(crate) fn sync_directory(path: &Path) -> Result<(), FileError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .at("sync", path)
}

/// A record of the store, at most `limit` bytes; nothing if there is none.
pub(crate) fn read_record(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, FileError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).at("read", path),
    };
    let length = file.metadata().at("read", path)?.len();
    crate::tree::read_at_most(file, length, limit)
        .map(Some)
        .at("read", path)
}

/// A new, empty file in an open directory, readable and writable.
pub(crate) fn create_in(directory: impl AsFd, name: &[u8], mode: u32) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(openat(directory, name, flags, Mode::from_raw_mode(0o600))?);
    // Not at creation: the umask of this process is not the project's matter.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    Ok(file)
}

/// Copies content: shared blocks where the disk can, else data without holes.
pub(crate) fn copy_content(mut source: &File, mut target: &File) -> io::Result<u64> {
    let length = source.metadata()?.len();
    match ioctl_ficlone(target, source) {
        Ok(()) => return Ok(length),
        // Every other reason will show up, or not, in the plain copy.
        Err(Errno::NOSPC | Errno::DQUOT) => {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        Err(_) => {}
    }
    let mut place = 0;
    while place < length {
        let start = match seek(source, Span::Data(place)) {
            Ok(start) => start,
            // Nothing but a hole from here on.
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => place,
            Err(error) => return Err(error.into()),
        };
        let end = seek(source, Span::Hole(start)).unwrap_or(length);
        source.seek(SeekFrom::Start(start))?;
        target.seek(SeekFrom::Start(start))?;
        let copied = io::copy(&mut source.take(end.saturating_sub(start)), &mut target)?;
        if copied == 0 {
            break;
        }
        place = start.saturating_add(copied);
    }
    target.set_len(length)?;
    Ok(length)
}

/// Refuses to go on when a disk is about to be full.
pub(crate) fn check_reserve(directory: impl AsFd) -> io::Result<()> {
    let disk = fstatvfs(directory)?;
    let total = disk.f_blocks.saturating_mul(disk.f_frsize);
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < RESERVE.min(total / 20) {
        return Err(io::Error::from(io::ErrorKind::StorageFull));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        write_record(folder.path(), "a.json", b"one").unwrap();
        write_record(folder.path(), "a.json", b"two").unwrap();
        let path = folder.path().join("a.json");
        assert_eq!(read_record(&path, 3).unwrap().unwrap(), b"two");
        assert!(read_record(&path, 2).is_err());
        assert!(read_record(&folder.path().join("b"), 2).unwrap().is_none());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_copy_keeps_holes_and_content() {
        use std::os::unix::fs::MetadataExt;

        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        let file = File::create(&source).unwrap();
        file.set_len(64 << 20).unwrap();
        (&file).seek(SeekFrom::Start(32 << 20)).unwrap();
        (&file).write_all(b"in the middle").unwrap();
        let directory = File::open(folder.path()).unwrap();
        let target = create_in(&directory, b"target", 0o640).unwrap();
        let length = copy_content(&File::open(&source).unwrap(), &target).unwrap();
        assert_eq!(length, 64 << 20);
        let path = folder.path().join("target");
        assert_eq!(fs::read(&source).unwrap(), fs::read(&path).unwrap());
        assert!(fs::metadata(&path).unwrap().blocks() * 512 < 1 << 20);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert!(create_in(&directory, b"target", 0o600).is_err());
    }
}
