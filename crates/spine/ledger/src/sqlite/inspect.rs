//! Connections that leave no trace: nothing is created, written or locked out.
//!
//! Verification uses them on files that may be evidence. SQLite by itself
//! would create side files even for a reader, hence the three ways below.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};

use super::store_error;
use crate::error::StoreError;

/// The largest value or row that is read, in bytes.
const MAX_VALUE: i32 = 1 << 20;

/// How the file may be read without changing anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// There is no WAL: nobody writes, and everything is in the file.
    Immutable,
    /// WAL and its index are there: the index is mapped for reading only.
    SharedIndex,
    /// A WAL without its index, as in a copy: the index is built in memory.
    OwnIndex,
}

/// Opens the database without changing it or its side files.
pub(super) fn connect(path: &Path) -> Result<Connection, StoreError> {
    let way = way(path);
    let parameters = match way {
        Way::Immutable => "immutable=1",
        Way::SharedIndex => "readonly_shm=1",
        Way::OwnIndex => "vfs=unix-none",
    };
    let uri = format!("file:{}?{parameters}", escape(path)?);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri, flags).map_err(store_error)?;
    set_up(&connection, way).map_err(store_error)?;
    Ok(connection)
}

fn set_up(connection: &Connection, way: Way) -> rusqlite::Result<()> {
    connection.busy_timeout(super::schema::BUSY)?;
    // No writer stores more in one value; a larger one is not even loaded.
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    if way == Way::OwnIndex {
        // With nobody else allowed in, SQLite keeps the index on the heap.
        connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    }
    connection.pragma_update(None, "query_only", true)
}

fn way(path: &Path) -> Way {
    let side_file = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        fs::metadata(PathBuf::from(name))
    };
    // An empty WAL holds nothing that the database does not.
    let has_wal = side_file("-wal").is_ok_and(|wal| wal.len() > 0);
    match (has_wal, side_file("-shm").is_ok()) {
        (false, _) => Way::Immutable,
        (true, false) if cfg!(unix) => Way::OwnIndex,
        (true, _) => Way::SharedIndex,
    }
}

/// The path as SQLite reads it inside a URI.
fn escape(path: &Path) -> Result<String, StoreError> {
    let absolute = std::path::absolute(path).map_err(StoreError::other)?;
    let mut text = String::new();
    for byte in absolute.as_os_str().as_encoded_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                text.push(char::from(*byte));
            }
            other => text.push_str(&format!("%{other:02x}")),
        }
    }
    Ok(text)
}
