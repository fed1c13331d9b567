//! The values of one plugin, in a file of their own.
//!
//! SQLite, because a value is either there whole or not at all, also when the
//! power goes. Bounded in the number of keys and in all bytes together.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use fluffy_policy::Permit;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{MAX_LISTED, ServiceError};

/// The most keys of one plugin.
const MAX_KEYS: i64 = 10_000;

/// The most bytes of all keys and values of one plugin.
const MAX_BYTES: i64 = 64 << 20;

/// A plugin's store; clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    connection: Arc<Mutex<Connection>>,
}

/// A store that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the store of the plugin cannot be opened")]
pub struct OpenStoreError {
    /// Why.
    #[source]
    source: rusqlite::Error,
}

impl Store {
    /// Opens the store in this file, or makes it.
    ///
    /// # Errors
    /// The file cannot be used as one.
    pub fn open(file: &Path) -> Result<Self, OpenStoreError> {
        let open = || {
            let connection = Connection::open(file)?;
            connection.execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
                 PRAGMA busy_timeout = 5000;
                 CREATE TABLE IF NOT EXISTS kv (key TEXT PRIMARY KEY, value BLOB NOT NULL)
                     STRICT, WITHOUT ROWID;",
            )?;
            Ok(connection)
        };
        let connection = open().map_err(|source| OpenStoreError { source })?;
        Ok(Self {
            connection: Arc::new(Mutex::new(connection)),
        })
    }

    pub(super) async fn get(
        &self,
        _permit: Permit,
        key: &str,
    ) -> Result<Option<Vec<u8>>, ServiceError> {
        let key = key.to_owned();
        self.with(move |connection| {
            let mut found = connection.prepare_cached("SELECT value FROM kv WHERE key = ?1")?;
            Ok(Ok(found.query_row([key], |row| row.get(0)).optional()?))
        })
        .await
    }

    pub(super) async fn set(
        &self,
        _permit: Permit,
        key: &str,
        value: Vec<u8>,
    ) -> Result<(), ServiceError> {
        let key = key.to_owned();
        self.with(move |connection| {
            let transaction = connection.transaction()?;
            transaction.execute(
                "INSERT INTO kv VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2",
                params![key, value],
            )?;
            let (keys, bytes): (i64, i64) = transaction.query_row(
                "SELECT count(*), coalesce(sum(length(key) + length(value)), 0) FROM kv",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )?;
            if keys > MAX_KEYS || bytes > MAX_BYTES {
                return Ok(Err(ServiceError::Full {
                    keys: MAX_KEYS,
                    bytes: MAX_BYTES,
                }));
            }
            transaction.commit()?;
            Ok(Ok(()))
        })
        .await
    }

    pub(super) async fn delete(&self, _permit: Permit, key: &str) -> Result<(), ServiceError> {
        let key = key.to_owned();
        self.with(move |connection| {
            connection.execute("DELETE FROM kv WHERE key = ?1", [key])?;
            Ok(Ok(()))
        })
        .await
    }

    pub(super) async fn list(
        &self,
        _permit: Permit,
        prefix: &str,
        after: &str,
    ) -> Result<Vec<String>, ServiceError> {
        let (prefix, after) = (prefix.to_owned(), after.to_owned());
        self.with(move |connection| {
            let mut listed = connection.prepare_cached(
                "SELECT key FROM kv WHERE key > ?1 AND substr(key, 1, length(?2)) = ?2
                 ORDER BY key LIMIT ?3",
            )?;
            let most = i64::try_from(MAX_LISTED).unwrap_or(i64::MAX);
            let keys = listed.query_map(params![after, prefix, most], |row| row.get(0))?;
            Ok(Ok(keys.collect::<Result<_, _>>()?))
        })
        .await
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<Result<T, ServiceError>> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let connection = Arc::clone(&self.connection);
        let done = tokio::task::spawn_blocking(move || {
            // A transaction that was left half-way has rolled itself back.
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            work(&mut connection)
        });
        let failed = |what: String| ServiceError::Failed { what };
        let done = done.await.map_err(|error| failed(error.to_string()))?;
        done.map_err(|error| failed(error.to_string()))?
    }
}
