//! What an agent must know when it starts again: its plan and its instances.
//!
//! One SQLite file, 0600, write-ahead; each change is one transaction, on the
//! disk before anybody is told. Decides nothing.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fluffy_api::node::v1;
use prost::Message as _;
use rusqlite::{Connection, OptionalExtension as _, params};
use serde::{Deserialize, Serialize};

use crate::decide::Observed;
use crate::driver::Handle;
use crate::images::ImageConfig;

/// The version of the tables.
const VERSION: i64 = 1;

/// The agent's memory.
#[derive(Debug)]
pub struct Store(Mutex<Connection>);

/// What is kept of an instance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// What the plan said of it last.
    #[serde(skip)]
    pub assignment: v1::Assignment,
    /// Whether the plan has it.
    pub planned: bool,
    /// What is known of it.
    pub seen: Observed,
    /// Its last start, `boot_…`.
    pub boot_id: String,
    /// What its driver needs.
    pub handle: Option<Handle>,
    /// Its image, once it is here.
    pub image: Option<(PathBuf, ImageConfig)>,
    /// Its own range of user ids.
    pub slot: u32,
}

/// An instance's id, and what is kept of it if that can be read.
pub type Row = (String, Result<Kept, StoreError>);

/// Why something was not kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be used.
    #[error("the node's memory at `{path}` cannot be used")]
    Open {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: rusqlite::Error,
    },
    /// It is of a newer agent.
    #[error("the node's memory is of version {0}, which this program does not know")]
    Newer(i64),
    /// It cannot be read or written.
    #[error("the node's memory cannot be read or written")]
    Sql(#[from] rusqlite::Error),
    /// What is in it is not what was written.
    #[error("the node's memory is damaged: {0}")]
    Damaged(String),
}

impl Kept {
    fn read(id: &str, assignment: &[u8], record: &str) -> Result<Self, StoreError> {
        let damaged = |error: String| StoreError::Damaged(format!("{id}: {error}"));
        let mut kept: Self =
            serde_json::from_str(record).map_err(|error| damaged(error.to_string()))?;
        kept.assignment =
            v1::Assignment::decode(assignment).map_err(|error| damaged(error.to_string()))?;
        Ok(kept)
    }
}

impl Store {
    /// Opens the memory of a node, made if it is not there.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Open {
            path: path.to_owned(),
            source,
        };
        // Before SQLite makes it readable for others.
        let mut options = OpenOptions::new();
        let made = options.create(true).append(true).mode(0o600).open(path);
        made.map_err(|error| failed(rusqlite::Error::ToSqlConversionFailure(Box::new(error))))?;
        let connection = Connection::open(path).map_err(failed)?;
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000;",
            )
            .map_err(failed)?;
        let version: i64 = connection
            .query_row("PRAGMA user_version", [], |row| row.get(0))
            .map_err(failed)?;
        if version > VERSION {
            return Err(StoreError::Newer(version));
        }
        connection
            .execute_batch(&format!(
                "CREATE TABLE IF NOT EXISTS plan (
                     one INTEGER PRIMARY KEY CHECK (one = 1), bytes BLOB NOT NULL) STRICT;
                 CREATE TABLE IF NOT EXISTS instances (
                     id TEXT PRIMARY KEY, assignment BLOB NOT NULL, record TEXT NOT NULL) STRICT;
                 PRAGMA user_version = {VERSION};"
            ))
            .map_err(failed)?;
        Ok(Self(Mutex::new(connection)))
    }

    /// The last plan, if there was one.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn plan(&self) -> Result<Option<v1::NodePlan>, StoreError> {
        let query = "SELECT bytes FROM plan";
        let bytes: Option<Vec<u8>> = self
            .lock()
            .query_row(query, [], |row| row.get(0))
            .optional()?;
        let read = |bytes: Vec<u8>| v1::NodePlan::decode(bytes.as_slice());
        let plan = bytes.map(read).transpose();
        plan.map_err(|error| StoreError::Damaged(error.to_string()))
    }

    /// Keeps a plan.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn keep_plan(&self, plan: &v1::NodePlan) -> Result<(), StoreError> {
        let sql = "INSERT INTO plan VALUES (1, ?1) ON CONFLICT (one) DO UPDATE SET bytes = ?1";
        self.lock().execute(sql, params![plan.encode_to_vec()])?;
        Ok(())
    }

    /// Every instance that there is something of; one whose row is damaged
    /// keeps no other from being read.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn instances(&self) -> Result<Vec<Row>, StoreError> {
        let connection = self.lock();
        let mut query =
            connection.prepare("SELECT id, assignment, record FROM instances ORDER BY id")?;
        let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let rows: rusqlite::Result<Vec<(String, Vec<u8>, String)>> = rows.collect();
        let read = |(id, assignment, record): (String, Vec<u8>, String)| {
            let kept = Kept::read(&id, &assignment, &record);
            (id, kept)
        };
        Ok(rows?.into_iter().map(read).collect())
    }

    /// One instance, if there is something of it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn instance(&self, id: &str) -> Result<Option<Kept>, StoreError> {
        let query = "SELECT assignment, record FROM instances WHERE id = ?1";
        let row: Option<(Vec<u8>, String)> = self
            .lock()
            .query_row(query, params![id], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        row.map(|(assignment, record)| Kept::read(id, &assignment, &record))
            .transpose()
    }

    /// Keeps what is known of an instance.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn keep_instance(&self, id: &str, kept: &Kept) -> Result<(), StoreError> {
        let record = serde_json::to_string(kept);
        let record = record.map_err(|error| StoreError::Damaged(error.to_string()))?;
        let sql = "INSERT INTO instances VALUES (?1, ?2, ?3)
                   ON CONFLICT (id) DO UPDATE SET assignment = ?2, record = ?3";
        let assignment = kept.assignment.encode_to_vec();
        self.lock().execute(sql, params![id, assignment, record])?;
        Ok(())
    }

    /// Forgets an instance.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn forget(&self, id: &str) -> Result<(), StoreError> {
        let sql = "DELETE FROM instances WHERE id = ?1";
        self.lock().execute(sql, params![id])?;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::decide::Status;

    #[test]
    fn what_was_kept_is_there_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.db");
        let plan = v1::NodePlan {
            epoch: 2,
            cursor_seq: 7,
            ..Default::default()
        };
        let mut kept = Kept {
            boot_id: "boot_1".to_owned(),
            planned: true,
            ..Kept::default()
        };
        kept.assignment.generation = 3;
        kept.seen.said = Some(Status::Ready);
        let store = Store::open(&path).unwrap();
        assert_eq!(store.plan().unwrap(), None);
        store.keep_plan(&plan).unwrap();
        store.keep_instance("a", &Kept::default()).unwrap();
        store.keep_instance("a", &kept).unwrap();
        store.keep_instance("b", &Kept::default()).unwrap();
        store.forget("b").unwrap();
        drop(store);
        let store = Store::open(&path).unwrap();
        assert_eq!(store.plan().unwrap(), Some(plan));
        let all = store.instances().unwrap();
        let all: Vec<(String, Kept)> = all.into_iter().map(|(id, it)| (id, it.unwrap())).collect();
        assert_eq!(all, [("a".to_owned(), kept.clone())]);
        assert_eq!(store.instance("a").unwrap(), Some(kept));
        assert_eq!(store.instance("b").unwrap(), None);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
    }

    #[test]
    fn a_damaged_row_is_no_empty_one_and_hits_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.db");
        let store = Store::open(&path).unwrap();
        for id in ["a", "b"] {
            store.keep_instance(id, &Kept::default()).unwrap();
        }
        let sql = "UPDATE instances SET record = '{\"planned\":' WHERE id = 'a'";
        store.lock().execute(sql, []).unwrap();
        assert!(matches!(store.instance("a"), Err(StoreError::Damaged(_))));
        assert_eq!(store.instance("b").unwrap(), Some(Kept::default()));
        let all = store.instances().unwrap();
        let read: Vec<(&str, bool)> = all
            .iter()
            .map(|(id, it)| (id.as_str(), it.is_ok()))
            .collect();
        assert_eq!(read, [("a", false), ("b", true)]);
    }
}
