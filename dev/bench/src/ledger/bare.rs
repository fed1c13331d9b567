//! Bare SQLite: the same columns and syncs, without a ledger around them.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fluffy_ledger::Durability;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};
use sha2::{Digest, Sha256};

use super::load::{Done, Kind};

/// The database of the ledger that `sqlite::open` opens in a directory.
const DATABASE: &str = "ledger/ledger.db";

/// What has been stored since the WAL was last copied into the database.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unsaved {
    pub(super) commits: u64,
    pub(super) events: u64,
}

impl Unsaved {
    /// Whether the ledger's writer would copy it now.
    pub(super) fn is_due(self) -> bool {
        self.commits >= 1_000 || self.events >= 50_000
    }
}

const INSERT: &str = "INSERT INTO events VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, \
    ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)";

/// Whether the bare table has the ledger's index by aggregate, which makes
/// versions unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Indexes {
    /// An equal table.
    Same,
    /// Rows alone.
    None,
}

/// One connection that inserts rows like a ledger's.
pub(super) struct Bare {
    connection: Connection,
    kind: Kind,
    next: u64,
    unsaved: Unsaved,
}

impl Bare {
    /// An empty table like the one of the ledger in `directory`, beside it.
    pub(super) fn beside(directory: &Path, kind: Kind, indexes: Indexes) -> Result<Self> {
        let types = match indexes {
            Indexes::Same => "'table', 'index'",
            Indexes::None => "'table'",
        };
        let table: String = read_only(&directory.join(DATABASE))?.query_row(
            &format!(
                "SELECT group_concat(sql, ';' ORDER BY type DESC) FROM sqlite_schema \
                 WHERE type IN ({types}) AND tbl_name = 'events' AND sql IS NOT NULL"
            ),
            [],
            |row| row.get(0),
        )?;
        let connection = Connection::open(directory.join("bare.db"))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
        connection.pragma_update(None, "cache_size", -16_384)?;
        let synchronous = match kind.durability {
            Durability::Operational => "NORMAL",
            Durability::Security => "FULL",
        };
        connection.pragma_update(None, "synchronous", synchronous)?;
        connection.execute_batch(&table)?;
        Ok(Self {
            connection,
            kind,
            next: 1,
            unsaved: Unsaved::default(),
        })
    }

    /// Inserts batches of this size until the WAL is as long as it gets: a
    /// sync takes much longer while the file grows.
    pub(super) fn warm_up(&mut self, batch: usize) -> Result<()> {
        self.insert(batch)?;
        while self.unsaved.commits > 0 {
            self.insert(batch)?;
        }
        Ok(())
    }

    /// Inserts batches of this size for this long.
    pub(super) fn run(&mut self, batch: usize, time: Duration) -> Result<Done> {
        let (start, first) = (Instant::now(), self.next);
        while start.elapsed() < time {
            self.insert(batch)?;
        }
        Ok(Done {
            events: self.next - first,
            time: start.elapsed(),
        })
    }

    fn insert(&mut self, batch: usize) -> Result<()> {
        let behaviour = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behaviour)?;
        let mut statement = transaction.prepare_cached(INSERT)?;
        let (none, hash) = (None::<&str>, [7u8; 32]);
        for _ in 0..batch {
            let seq = i64::try_from(self.next)?;
            let aggregate = format!("a{}", self.next % 100);
            let payload = self.kind.payload(self.next);
            statement.execute(params![
                seq,
                "platform",
                "app",
                aggregate,
                seq,
                "app.updated",
                1,
                1_700_000_000_000_000_i64,
                "system",
                "bench",
                none,
                none,
                none,
                none,
                "req_01ARZ3NDEKTSV4RRFFQ69G5FAV",
                none,
                none,
                none,
                none,
                payload,
                hash,
                hash,
            ])?;
            self.next += 1;
        }
        drop(statement);
        transaction.commit()?;
        self.unsaved.commits += 1;
        self.unsaved.events += batch as u64;
        if self.unsaved.is_due() {
            self.unsaved = Unsaved::default();
            let sql = "PRAGMA wal_checkpoint(PASSIVE)";
            self.connection.query_row(sql, [], |_| Ok(()))?;
        }
        Ok(())
    }
}

/// How many transactions the ledger in this directory has seen: SQLite keeps
/// the count at byte 8 of the WAL's index.
pub(super) fn transactions(directory: &Path) -> Result<u64> {
    let mut head = [0; 12];
    let index = directory.join(format!("{DATABASE}-shm"));
    File::open(index)?.read_exact(&mut head)?;
    let count = head.last_chunk().context("twelve bytes end in four")?;
    Ok(u64::from(u32::from_ne_bytes(*count)))
}

/// Reads every column of every event and hashes it; returns how many.
pub(super) fn read_and_hash(directory: &Path) -> Result<u64> {
    let connection = read_only(&directory.join(DATABASE))?;
    let mut statement = connection.prepare("SELECT * FROM events ORDER BY seq")?;
    let columns = statement.column_count();
    let mut rows = statement.query([])?;
    let mut events = 0;
    let mut digest = Sha256::digest(b"");
    while let Some(row) = rows.next()? {
        let mut hash = Sha256::new();
        for column in 0..columns {
            match row.get_ref(column)? {
                ValueRef::Null => {}
                ValueRef::Integer(value) => hash.update(value.to_be_bytes()),
                ValueRef::Real(value) => hash.update(value.to_be_bytes()),
                ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
                    hash.update(bytes);
                }
            }
        }
        digest = hash.finalize();
        events += 1;
    }
    std::hint::black_box(digest);
    Ok(events)
}

fn read_only(path: &Path) -> Result<Connection> {
    Ok(Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_ONLY,
    )?)
}
