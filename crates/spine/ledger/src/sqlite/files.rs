//! Files that only their owner may read, in directories only they may enter.
//!
//! SQLite gives its side files the mode of the database, so the database is
//! created here before SQLite ever sees the path.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// Creates the directory and its parents, 0700 where it is new.
pub(crate) fn private_directory(path: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Opens the file for appending, created 0600 if it is not there.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// The file that everyone who has a ledger open holds a lock on.
fn lock_file(directory: &Path) -> io::Result<File> {
    private_file(&directory.join("ledger.lock"))
}

/// Says that this process uses the directory, until the file is closed.
/// Waits for a salvage that another process does.
pub(crate) fn present(directory: &Path) -> io::Result<File> {
    let file = lock_file(directory)?;
    match file.lock_shared() {
        // A file system without locks is used without them.
        Err(error) if error.kind() != io::ErrorKind::Unsupported => Err(error),
        _ => Ok(file),
    }
}

/// The directory for this process alone; none if others use it.
pub(crate) fn alone(directory: &Path) -> io::Result<Option<File>> {
    let file = lock_file(directory)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Keeps a directory to one thread of one process until the file is closed;
/// waits for whoever has it.
pub(crate) fn one_at_a_time(directory: &Path) -> io::Result<File> {
    private_directory(directory)?;
    let file = private_file(&directory.join("lock"))?;
    match file.lock() {
        Err(error) if error.kind() != io::ErrorKind::Unsupported => Err(error),
        _ => Ok(file),
    }
}

/// What only a directory that once held a ledger has in it.
pub(crate) fn has_traces(directory: &Path) -> bool {
    let filled = |name| {
        let entries = std::fs::read_dir(directory.join(name));
        entries.is_ok_and(|mut entries| entries.next().is_some())
    };
    ["archive", "snapshots", "views"].into_iter().any(filled) || !unfinished(directory).is_empty()
}

/// Directories of a salvage that was interrupted, the newest first.
pub(crate) fn unfinished(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "part")
        })
        .collect();
    found.sort_unstable_by(|one, other| other.cmp(one));
    found
}

/// Makes renames in a directory survive a power cut.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    // Only Unix lets a directory be opened and synced.
    if cfg!(unix) {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}
