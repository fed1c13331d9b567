//! The store beside the ledger as one SQLite file.
//!
//! One connection writes and eight read, each call on a thread that may block.
//! The clock is this machine's.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{AsideError, Claim, Draw, Entry, TURN, integer, millis};

const READERS: usize = 8;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS entries (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    written INTEGER NOT NULL,
    expires INTEGER,
    PRIMARY KEY (kind, key)
) STRICT;
CREATE INDEX IF NOT EXISTS entries_expires ON entries (expires) WHERE expires IS NOT NULL;
CREATE TABLE IF NOT EXISTS leases (
    name TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    expires INTEGER NOT NULL
) STRICT;
-- A file is one process's: whoever held something before is gone, and if not,
-- terms in the ledger keep it out.
DELETE FROM leases;
CREATE TABLE IF NOT EXISTS places (
    name TEXT NOT NULL,
    holder TEXT NOT NULL,
    count INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    PRIMARY KEY (name, holder)
) STRICT;
DELETE FROM places;
CREATE TABLE IF NOT EXISTS buckets (
    name TEXT PRIMARY KEY,
    window INTEGER NOT NULL,
    used INTEGER NOT NULL,
    expires INTEGER NOT NULL
) STRICT;
";

/// The database's clock, in milliseconds since 1970.
const NOW: &str = "CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER)";

#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    writer: Arc<Mutex<Connection>>,
    writing: Semaphore,
    readers: Arc<Mutex<Vec<Connection>>>,
    reading: Semaphore,
}

/// An entry with everything that is kept of it.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) kind: String,
    pub(super) key: String,
    pub(super) value: Vec<u8>,
    /// How long it still lives.
    pub(super) life: Option<Duration>,
}

impl Store {
    pub(super) fn open(path: &Path) -> Result<Self, AsideError> {
        // SQLite gives its side files the mode of the database.
        let mut options = OpenOptions::new();
        options.create(true).append(true).read(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options
            .open(path)
            .map_err(|error| AsideError::Unavailable(Arc::new(error)))?;
        let writer = connect(path).map_err(failed)?;
        writer.execute_batch(TABLES).map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            writer: Arc::new(Mutex::new(writer)),
            writing: Semaphore::new(1),
            readers: Arc::default(),
            reading: Semaphore::new(READERS),
        })
    }

    pub(super) async fn put(
        &self,
        kind: &'static str,
        key: &str,
        value: Vec<u8>,
        life: Option<Duration>,
    ) -> Result<(), AsideError> {
        let (key, life) = (key.to_owned(), life.map(millis));
        let sql = format!(
            "INSERT INTO entries (kind, key, value, written, expires) \
             VALUES (?1, ?2, ?3, {NOW}, {NOW} + ?4) ON CONFLICT DO UPDATE \
             SET value = excluded.value, written = excluded.written, expires = excluded.expires"
        );
        self.write(move |connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            statement.execute(params![kind, key, value, life]).map(drop)
        })
        .await
    }

    pub(super) async fn put_new(
        &self,
        kind: &'static str,
        key: &str,
        value: Vec<u8>,
        life: Option<Duration>,
    ) -> Result<bool, AsideError> {
        let (key, life) = (key.to_owned(), life.map(millis));
        let sql = format!(
            "INSERT INTO entries (kind, key, value, written, expires) \
             VALUES (?1, ?2, ?3, {NOW}, {NOW} + ?4) ON CONFLICT DO UPDATE \
             SET value = excluded.value, written = excluded.written, expires = excluded.expires \
             WHERE entries.expires <= {NOW}"
        );
        self.write(move |connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            let rows = statement.execute(params![kind, key, value, life])?;
            Ok(rows == 1)
        })
        .await
    }

    pub(super) async fn get(
        &self,
        kind: &'static str,
        key: &str,
    ) -> Result<Option<Entry>, AsideError> {
        let key = key.to_owned();
        let sql = format!(
            "SELECT key, value, {NOW} - written FROM entries \
             WHERE kind = ?1 AND key = ?2 AND (expires IS NULL OR expires > {NOW})"
        );
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            statement.query_row(params![kind, key], entry).optional()
        })
        .await
    }

    pub(super) async fn delete(&self, kind: &'static str, key: &str) -> Result<bool, AsideError> {
        let key = key.to_owned();
        self.write(move |connection| {
            let sql = "DELETE FROM entries WHERE kind = ?1 AND key = ?2";
            let rows = connection
                .prepare_cached(sql)?
                .execute(params![kind, key])?;
            Ok(rows == 1)
        })
        .await
    }

    pub(super) async fn list(
        &self,
        kind: &'static str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Entry>, AsideError> {
        let after = after.to_owned();
        let sql = format!(
            "SELECT key, value, {NOW} - written FROM entries WHERE kind = ?1 AND key > ?2 \
             AND (expires IS NULL OR expires > {NOW}) ORDER BY key LIMIT ?3"
        );
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            let entries = statement.query_map(params![kind, after, limit], entry)?;
            entries.collect()
        })
        .await
    }

    /// The entry after this kind and key, whatever its kind.
    pub(super) async fn next_after(
        &self,
        (kind, key): &(String, String),
    ) -> Result<Option<Whole>, AsideError> {
        let (kind, key) = (kind.clone(), key.clone());
        let sql = format!(
            "SELECT kind, key, value, expires - {NOW} FROM entries WHERE (kind, key) > (?1, ?2) \
             AND (expires IS NULL OR expires > {NOW}) ORDER BY kind, key LIMIT 1"
        );
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            let whole = statement.query_row(params![kind, key], |row| {
                let left: Option<i64> = row.get(3)?;
                let left = left.map(|left| u64::try_from(left).unwrap_or_default());
                Ok(Whole {
                    kind: row.get(0)?,
                    key: row.get(1)?,
                    value: row.get(2)?,
                    life: left.map(Duration::from_millis),
                })
            });
            whole.optional()
        })
        .await
    }

    pub(super) async fn last_keys(
        &self,
        kind: &'static str,
        limit: u32,
    ) -> Result<Vec<String>, AsideError> {
        let sql = format!(
            "SELECT key FROM entries WHERE kind = ?1 \
             AND (expires IS NULL OR expires > {NOW}) ORDER BY key DESC LIMIT ?2"
        );
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            let keys = statement.query_map(params![kind, limit], |row| row.get(0))?;
            keys.collect()
        })
        .await
    }

    pub(super) async fn draw(&self, bucket: &str, draw: Draw) -> Result<u64, AsideError> {
        let bucket = bucket.to_owned();
        let window = millis(draw.window).max(1);
        let (wanted, limit) = (integer(draw.wanted), integer(draw.limit));
        self.write(move |connection| {
            let transaction = connection.unchecked_transaction()?;
            let now: i64 = transaction.query_row(&format!("SELECT {NOW}"), [], |r| r.get(0))?;
            let current = now / window;
            let used: i64 = transaction
                .prepare_cached("SELECT used FROM buckets WHERE name = ?1 AND window = ?2")?
                .query_row(params![bucket, current], |row| row.get(0))
                .optional()?
                .unwrap_or(0);
            let got = wanted.min(limit - used).max(0);
            let sql = "INSERT INTO buckets (name, window, used, expires) \
                VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE \
                SET window = excluded.window, used = excluded.used, expires = excluded.expires";
            transaction.prepare_cached(sql)?.execute(params![
                bucket,
                current,
                used + got,
                (current + 1) * window
            ])?;
            transaction.commit()?;
            Ok(u64::try_from(got).unwrap_or(0))
        })
        .await
    }

    pub(super) async fn claim(
        &self,
        name: &str,
        holder: &str,
        claim: Claim,
    ) -> Result<u64, AsideError> {
        let (name, holder) = (name.to_owned(), holder.to_owned());
        let (wanted, limit) = (integer(claim.wanted), integer(claim.limit));
        let life = millis(claim.life);
        self.write(move |connection| {
            let transaction = connection.unchecked_transaction()?;
            let sql = format!(
                "SELECT coalesce(sum(count), 0) FROM places \
                 WHERE name = ?1 AND holder <> ?2 AND expires > {NOW}"
            );
            let others: i64 = transaction
                .prepare_cached(&sql)?
                .query_row(params![name, holder], |row| row.get(0))?;
            let got = wanted.min(limit - others).max(0);
            let sql = format!(
                "INSERT INTO places (name, holder, count, expires) \
                 VALUES (?1, ?2, ?3, {NOW} + ?4) ON CONFLICT DO UPDATE \
                 SET count = excluded.count, expires = excluded.expires"
            );
            transaction
                .prepare_cached(&sql)?
                .execute(params![name, holder, got, life])?;
            let none = "DELETE FROM places WHERE name = ?1 AND holder = ?2 AND count = 0";
            transaction
                .prepare_cached(none)?
                .execute(params![name, holder])?;
            transaction.commit()?;
            Ok(u64::try_from(got).unwrap_or(0))
        })
        .await
    }

    pub(super) async fn keep(
        &self,
        holder: &str,
        life: Duration,
    ) -> Result<BTreeMap<String, u64>, AsideError> {
        let (holder, life) = (holder.to_owned(), millis(life));
        let sql = format!(
            "UPDATE places SET expires = {NOW} + ?2 \
             WHERE holder = ?1 AND expires > {NOW} RETURNING name, count"
        );
        self.write(move |connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            let kept = statement.query_map(params![holder, life], |row| {
                let count: i64 = row.get(1)?;
                Ok((row.get(0)?, u64::try_from(count).unwrap_or(0)))
            })?;
            kept.collect()
        })
        .await
    }

    pub(super) async fn take(
        &self,
        name: &str,
        holder: &str,
        life: Duration,
    ) -> Result<bool, AsideError> {
        let sql = format!(
            "INSERT INTO leases (name, holder, expires) VALUES (?1, ?2, {NOW} + ?3) \
             ON CONFLICT DO UPDATE SET holder = excluded.holder, expires = excluded.expires \
             WHERE leases.expires <= {NOW} OR leases.holder = excluded.holder"
        );
        self.lease(sql, name, holder, life).await
    }

    pub(super) async fn renew(
        &self,
        name: &str,
        holder: &str,
        life: Duration,
    ) -> Result<bool, AsideError> {
        let sql = format!(
            "UPDATE leases SET expires = {NOW} + ?3 \
             WHERE name = ?1 AND holder = ?2 AND expires > {NOW}"
        );
        self.lease(sql, name, holder, life).await
    }

    pub(super) async fn give_up(&self, name: &str, holder: &str) -> Result<(), AsideError> {
        let sql = "DELETE FROM leases WHERE name = ?1 AND holder = ?2 AND ?3 IS NOT NULL";
        let given = self.lease(sql.to_owned(), name, holder, Duration::ZERO);
        given.await.map(drop)
    }

    async fn lease(
        &self,
        sql: String,
        name: &str,
        holder: &str,
        life: Duration,
    ) -> Result<bool, AsideError> {
        let (name, holder, life) = (name.to_owned(), holder.to_owned(), millis(life));
        self.write(move |connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            Ok(statement.execute(params![name, holder, life])? == 1)
        })
        .await
    }

    pub(super) async fn sweep(&self) -> Result<u64, AsideError> {
        self.write(|connection| {
            let mut removed = 0;
            for table in ["entries", "buckets", "places"] {
                let sql = format!("DELETE FROM {table} WHERE expires <= {NOW}");
                removed += connection.execute(&sql, [])?;
            }
            Ok(removed as u64)
        })
        .await
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, AsideError> {
        let _turn = turn(&self.writing).await?;
        let writer = Arc::clone(&self.writer);
        let done =
            spawn_blocking(move || work(&writer.lock().unwrap_or_else(PoisonError::into_inner)));
        finished(done.await)
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, AsideError> {
        let _turn = turn(&self.reading).await?;
        let (readers, path) = (Arc::clone(&self.readers), self.path.clone());
        let done = spawn_blocking(move || {
            let idle = || readers.lock().unwrap_or_else(PoisonError::into_inner);
            let taken = idle().pop();
            let connection = match taken {
                Some(connection) => connection,
                None => connect(&path)?,
            };
            let result = work(&connection);
            // A connection that met an error is closed with it.
            if result.is_ok() {
                idle().push(connection);
            }
            result
        });
        finished(done.await)
    }
}

async fn turn(gate: &Semaphore) -> Result<tokio::sync::SemaphorePermit<'_>, AsideError> {
    let turn = timeout(TURN, gate.acquire()).await;
    turn.map_err(|_| AsideError::Busy)?
        .map_err(|_| AsideError::Busy)
}

fn finished<T>(done: Result<rusqlite::Result<T>, tokio::task::JoinError>) -> Result<T, AsideError> {
    done.map_err(|error| AsideError::Unavailable(Arc::new(error)))?
        .map_err(failed)
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(TURN)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // What is erased is gone from the file too.
    connection.pragma_update(None, "secure_delete", true)?;
    Ok(connection)
}

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    let age: i64 = row.get(2)?;
    Ok(Entry {
        key: row.get(0)?,
        value: row.get(1)?,
        age: Duration::from_millis(u64::try_from(age).unwrap_or(0)),
    })
}

fn failed(error: rusqlite::Error) -> AsideError {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
            AsideError::Busy
        }
        Some(rusqlite::ErrorCode::CannotOpen | rusqlite::ErrorCode::DiskFull) => {
            AsideError::Unavailable(Arc::new(error))
        }
        _ => AsideError::Store(Arc::new(error)),
    }
}
