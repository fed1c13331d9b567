//! Appending: one transaction per group, numbered under SQLite's write lock.
//!
//! Other processes may append to the same file; the head is therefore read
//! inside the transaction, always. Never hands out a position before commit.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{CachedStatement, Connection, OptionalExtension, TransactionBehavior, params};

use super::schema::{self, Use};
use super::{integer, store_error};
use crate::chain::{AggregateKey, Command, Head, Versions, seal};
use crate::class::Durability;
use crate::error::StoreError;
use crate::event::Event;
use crate::row::{COLUMNS, RowRef};
use crate::tree::Node;

/// A WAL checkpoint is due after this many commits, some 32 MiB of WAL when each
/// has one event: it syncs pages from all over a large ledger …
const COMMITS_PER_CHECKPOINT: u32 = 2_000;
/// … or this long after the first commit since the last …
const TIME_PER_CHECKPOINT: Duration = Duration::from_secs(60);
/// … or when this many events wait in the WAL, whatever the commits.
const EVENTS_PER_CHECKPOINT: usize = 50_000;

/// The connection that appends.
#[derive(Debug)]
pub(crate) struct Writer {
    connection: Connection,
    wal: PathBuf,
    durability: Durability,
    versions: Versions,
    /// Something may have been committed without waiting for the disk.
    unflushed: bool,
    since_checkpoint: Unsaved,
    insert: String,
}

/// What has gone into the WAL since it was last copied into the database.
#[derive(Debug, Default)]
struct Unsaved {
    commits: u32,
    events: usize,
    since: Option<Instant>,
}

impl Writer {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let mut wal = path.as_os_str().to_owned();
        wal.push("-wal");
        Ok(Self {
            connection: schema::connect(path, Use::Write)?,
            wal: wal.into(),
            durability: Durability::Security,
            versions: Versions::default(),
            unflushed: true,
            since_checkpoint: Unsaved::default(),
            insert: insert_sql(),
        })
    }

    /// See [`crate::engine::Writer::commit`].
    pub(crate) fn commit(
        &mut self,
        commands: &mut [Command],
        durability: Durability,
    ) -> Result<Head, StoreError> {
        self.set_durability(durability).map_err(store_error)?;
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(store_error)?;
        let mut head = schema::head(&transaction)?;
        self.versions.start(&head);
        for key in self.versions.missing(commands) {
            let version = version(&transaction, &key)?;
            self.versions.learn(key, version);
        }
        let before = head.seq;
        let nodes = seal(&mut head, &mut self.versions, commands);
        if head.seq > before {
            let events = commands.iter().flat_map(Command::events);
            insert_events(&transaction, &self.insert, events).map_err(store_error)?;
            insert_nodes(&transaction, &nodes).map_err(store_error)?;
            write_versions(&transaction, &self.versions).map_err(store_error)?;
            write_head(&transaction, &head).map_err(store_error)?;
        }
        transaction.commit().map_err(store_error)?;
        self.versions.committed(&head);
        if head.seq > before {
            // A durable commit takes all of the WAL before it to the disk.
            self.unflushed = durability == Durability::Operational;
        }
        let events = usize::try_from(head.seq - before).unwrap_or(usize::MAX);
        self.since_checkpoint.count(events);
        Ok(head)
    }

    /// See [`crate::engine::Writer::sync`].
    pub(crate) fn sync(&mut self) -> Result<(), StoreError> {
        if !self.unflushed {
            return Ok(());
        }
        match File::open(&self.wal) {
            Ok(wal) => wal.sync_data().map_err(StoreError::other)?,
            // Without a WAL everything is in the database, which SQLite syncs.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(StoreError::other(error)),
        }
        self.unflushed = false;
        Ok(())
    }

    /// See [`crate::engine::Writer::maintain`].
    pub(crate) fn maintain(&mut self) -> Result<(), StoreError> {
        if self.since_checkpoint.is_due() {
            self.since_checkpoint = Unsaved::default();
            self.connection
                .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
                .map_err(store_error)?;
        }
        Ok(())
    }

    /// `NORMAL` leaves the fsync to the next checkpoint or security event.
    fn set_durability(&mut self, durability: Durability) -> rusqlite::Result<()> {
        if self.durability != durability {
            let mode = match durability {
                Durability::Operational => "NORMAL",
                Durability::Security => "FULL",
            };
            self.connection.pragma_update(None, "synchronous", mode)?;
            self.durability = durability;
        }
        Ok(())
    }
}

impl Unsaved {
    fn count(&mut self, events: usize) {
        self.commits += 1;
        self.events += events;
        self.since.get_or_insert_with(Instant::now);
    }

    fn is_due(&self) -> bool {
        self.commits >= COMMITS_PER_CHECKPOINT
            || self.events >= EVENTS_PER_CHECKPOINT
            || self
                .since
                .is_some_and(|since| since.elapsed() >= TIME_PER_CHECKPOINT)
    }
}

/// The version of an aggregate, 0 if it has no event.
pub(super) fn version(connection: &Connection, key: &AggregateKey) -> Result<u64, StoreError> {
    let sql = "SELECT version FROM aggregates \
        WHERE aggregate_id = ?1 AND aggregate_type = ?2 AND domain = ?3";
    let (domain, kind, id) = key.parts();
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let version: Option<i64> = statement
        .query_row([id, kind, domain], |row| row.get(0))
        .optional()
        .map_err(store_error)?;
    u64::try_from(version.unwrap_or(0)).map_err(|_| schema::bad_row("aggregates"))
}

pub(super) fn insert_sql() -> String {
    let slots: Vec<String> = (1..=COLUMNS.len()).map(|n| format!("?{n}")).collect();
    format!(
        "INSERT INTO events ({}) VALUES ({})",
        COLUMNS.join(", "),
        slots.join(", ")
    )
}

pub(super) fn insert_events<'e>(
    connection: &Connection,
    sql: &str,
    events: impl Iterator<Item = &'e Event>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql)?;
    for event in events {
        bind(&mut statement, &RowRef::of(event))?;
        statement.raw_execute()?;
    }
    Ok(())
}

fn bind(statement: &mut CachedStatement<'_>, row: &RowRef<'_>) -> rusqlite::Result<()> {
    statement.raw_bind_parameter(1, integer(row.seq))?;
    statement.raw_bind_parameter(2, row.domain)?;
    statement.raw_bind_parameter(3, row.aggregate_type)?;
    statement.raw_bind_parameter(4, row.aggregate_id)?;
    statement.raw_bind_parameter(5, integer(row.aggregate_version))?;
    statement.raw_bind_parameter(6, row.event_type)?;
    statement.raw_bind_parameter(7, row.event_version)?;
    statement.raw_bind_parameter(8, row.occurred_at.as_micros())?;
    statement.raw_bind_parameter(9, row.actor_type)?;
    statement.raw_bind_parameter(10, row.actor_id)?;
    statement.raw_bind_parameter(11, row.actor_on_behalf_of)?;
    statement.raw_bind_parameter(12, row.org_id)?;
    statement.raw_bind_parameter(13, row.app_id)?;
    statement.raw_bind_parameter(14, row.env_id)?;
    statement.raw_bind_parameter(15, row.request_id)?;
    statement.raw_bind_parameter(16, row.idempotency_key)?;
    statement.raw_bind_parameter(17, row.correlation_id)?;
    statement.raw_bind_parameter(18, row.causation_seq.map(integer))?;
    statement.raw_bind_parameter(19, row.decision_seq.map(integer))?;
    statement.raw_bind_parameter(20, row.payload)?;
    statement.raw_bind_parameter(21, row.prev_hash.as_bytes())?;
    statement.raw_bind_parameter(22, row.hash.as_bytes())
}

pub(super) fn insert_nodes(connection: &Connection, nodes: &[Node]) -> rusqlite::Result<()> {
    let sql = "INSERT INTO tree (level, position, hash) VALUES (?1, ?2, ?3)";
    let mut statement = connection.prepare_cached(sql)?;
    for node in nodes {
        statement.execute(params![
            node.level,
            integer(node.position),
            node.hash.as_bytes()
        ])?;
    }
    Ok(())
}

fn write_versions(connection: &Connection, versions: &Versions) -> rusqlite::Result<()> {
    let sql = "INSERT INTO aggregates (domain, aggregate_type, aggregate_id, version) \
        VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET version = excluded.version";
    let mut statement = connection.prepare_cached(sql)?;
    for (key, version) in versions.changed() {
        let (domain, kind, id) = key.parts();
        statement.execute(params![domain, kind, id, integer(version)])?;
    }
    Ok(())
}

pub(super) fn write_head(connection: &Connection, head: &Head) -> rusqlite::Result<()> {
    let sql = "UPDATE ledger_head SET seq = ?1, hash = ?2, epoch = ?3, frontier = ?4 WHERE id = 1";
    connection.prepare_cached(sql)?.execute(params![
        integer(head.seq),
        head.hash.as_bytes(),
        integer(head.epoch),
        head.frontier.to_bytes(),
    ])?;
    Ok(())
}
