//! Copies of the whole database, taken while it is in use.
//!
//! The kernel takes one at the end of each session; the newest five are kept.
//! `salvage` fills the holes of a damaged database from them. Nothing here
//! ever replaces the ledger itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::engine::Engine;
use crate::error::StoreError;
use crate::ledger::Ledger;
use crate::sqlite;

/// How many are kept.
pub const KEPT: usize = 5;

/// Why no snapshot was taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A ledger on a server is backed up by the means of the server.
    #[error("a ledger in PostgreSQL has no snapshots; back up the database")]
    Server,
    /// The ledger can't be read, or the copy not written.
    #[error("the ledger can't be copied")]
    Store(#[from] StoreError),
    /// The copy can't be put in its place.
    #[error("the snapshot `{}` can't be written", path.display())]
    Io {
        /// The snapshot.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl Ledger {
    /// Copies everything committed so far; returns the path of the copy.
    ///
    /// Writers go on meanwhile. A copy of the same state replaces the one
    /// before; otherwise the newest five stay.
    ///
    /// # Errors
    /// The disk is full, or the ledger is not in SQLite.
    pub fn snapshot(&self) -> Result<PathBuf, SnapshotError> {
        let Engine::Sqlite(store) = &*self.shared.engine else {
            return Err(SnapshotError::Server);
        };
        let directory = directory(store.directory());
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| SnapshotError::Io { path, source }
        };
        let _lock = sqlite::one_at_a_time(&directory).map_err(failed(&directory))?;
        let part = directory.join("snapshot.part");
        remove(&part).map_err(failed(&part))?;
        let head = store.copy_to(&part)?;
        let path = directory.join(format!("{:010}-{:020}.db", head.epoch, head.seq));
        let put_in_place = || {
            fs::File::open(&part)?.sync_all()?;
            fs::rename(&part, &path)?;
            for old in newest_first(store.directory()).iter().skip(KEPT) {
                remove(old)?;
            }
            sqlite::sync_directory(&directory)
        };
        put_in_place().map_err(failed(&path))?;
        Ok(path)
    }
}

/// The snapshots of the ledger in a directory, the newest first.
pub(crate) fn newest_first(ledger: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory(ledger))
        .into_iter()
        .flatten()
        .flatten();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "db"))
        .collect();
    found.sort_unstable_by(|one, other| other.cmp(one));
    found
}

fn directory(ledger: &Path) -> PathBuf {
    ledger.join("snapshots")
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
