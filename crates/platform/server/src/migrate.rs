//! Moves a platform from the files of one machine into PostgreSQL.
//!
//! First the ledger, which comes out with the same hash or not at all, then
//! what is kept beside it. The files stay as they are. Master keys are files
//! of their own, and go wherever the operator takes them.

use std::path::{Path, PathBuf};

use fluffy_ledger::{
    CopyError, Ledger, LedgerHead, LedgerOptions, OpenLedgerError, PostgresAddress,
};
use tokio::task::spawn_blocking;

use crate::aside::{self, AsideError};

/// What was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migrated {
    /// The end of the ledger, there as here.
    pub head: LedgerHead,
    /// How many entries were beside it.
    pub entries: u64,
}

/// Why a platform was not moved.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// There is no platform.
    #[error("there is no ledger in `{}`", directory.display())]
    Missing {
        /// Where it was looked for.
        directory: PathBuf,
    },
    /// Its ledger can't be opened.
    #[error("the ledger can't be opened")]
    Open(#[from] OpenLedgerError),
    /// Its ledger was not copied.
    #[error("the ledger was not copied")]
    Copy(#[from] CopyError),
    /// What is beside it was not copied; doing it again goes on from there.
    #[error("what is kept beside the ledger was not copied")]
    Aside(#[from] AsideError),
    /// The runtime shuts down.
    #[error("the runtime ended while the ledger was copied")]
    Interrupted,
}

/// Copies the platform in a directory that nobody serves into a database.
///
/// # Errors
/// See [`MigrateError`]; the directory is as before.
pub async fn migrate(directory: &Path, to: &PostgresAddress) -> Result<Migrated, MigrateError> {
    let folder = directory.join("ledger");
    if !folder.is_dir() {
        let directory = directory.to_owned();
        return Err(MigrateError::Missing { directory });
    }
    let address = to.clone();
    let copied = spawn_blocking(move || {
        let ledger = Ledger::open(&folder, LedgerOptions::default())?;
        // Waiting for a database takes a thread of its own.
        let copied = std::thread::scope(|scope| {
            let copying = scope.spawn(|| ledger.copy_to_postgres(&address));
            copying.join()
        });
        // Nothing was appended, so nothing can be lost.
        let _ = ledger.close();
        match copied {
            Ok(copied) => Ok(copied?),
            Err(_) => Err(MigrateError::Interrupted),
        }
    });
    let head = copied.await.map_err(|_| MigrateError::Interrupted)??;
    let entries = aside::copy(directory, to).await?;
    Ok(Migrated { head, entries })
}
