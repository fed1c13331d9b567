//! The embedded engine: one SQLite file in WAL mode.
//!
//! `schema` holds the tables, `store` reads, `writer` appends, `view` keeps
//! projections in files of their own, `files` makes them private, `inspect`
//! reads without leaving a trace, `rescue` reads what is damaged. Nothing
//! outside this folder knows SQL of the ledger's tables.

mod files;
mod inspect;
mod rescue;
mod schema;
mod store;
mod view;
mod writer;

pub(crate) use files::{
    alone, has_traces, one_at_a_time, private_directory, private_file, sync_directory, unfinished,
};
pub(crate) use rescue::{Condition, Rebuild, Rescue, beside, condition};
pub(crate) use store::Store;
pub(crate) use view::View;
pub(crate) use writer::Writer;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};

use crate::error::StoreError;

/// Sorts an error of SQLite into the kinds callers can act on.
pub(crate) fn store_error(error: rusqlite::Error) -> StoreError {
    // A quota or a file size limit shows as a failed write or a failed growth
    // of the shared memory file, not as `DiskFull`.
    const IOERR_WRITE: i32 = 778;
    const IOERR_SHMSIZE: i32 = 4874;
    let Some(code) = error.sqlite_error().copied() else {
        return StoreError::other(error);
    };
    let source = Arc::new(error);
    match (code.code, code.extended_code) {
        (ErrorCode::DiskFull, _) | (_, IOERR_WRITE | IOERR_SHMSIZE) => StoreError::Full(source),
        (ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked, _) => StoreError::Busy(source),
        (ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase, _) => StoreError::Corrupt(source),
        _ => StoreError::Other(source),
    }
}

/// Switches a database to WAL mode and waits if another process does so.
fn use_wal(connection: &Connection) -> rusqlite::Result<()> {
    // SQLite's own busy timeout does not cover the switch.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match connection.pragma_update(None, "journal_mode", "WAL") {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && Instant::now() < deadline =>
            {
                thread::sleep(Duration::from_millis(5));
            }
            switched => return switched,
        }
    }
}

/// Positions and versions as SQLite stores them.
fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use fluffy_test_kit::wait_for;
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn the_switch_to_wal_waits_for_another_process() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("new.db");
        let other = Connection::open(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let switch = thread::spawn(move || use_wal(&Connection::open(path).unwrap()));
        let moment = Duration::from_millis(50);
        let gave_up = wait_for("the switch gives up", moment, || {
            switch.is_finished().then_some(())
        });
        assert!(gave_up.is_err(), "{:?}", switch.join());
        other.execute_batch("COMMIT").unwrap();
        switch.join().unwrap().unwrap();
    }
}
