//! The tables of format 1, and how connections to them are set up.
//!
//! The triggers keep honest programs honest; whoever drops them is found by
//! verification. Never change a table here: add a new format instead.

use std::path::Path;
use std::time::Duration;

use fluffy_base::{Digest, Timestamp};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, Rows, params};

use super::{inspect, integer, store_error, use_wal};
use crate::chain::{FORMAT, Genesis, Head};
use crate::engine::{RowFault, Visit};
use crate::error::StoreError;
use crate::row::{COLUMNS, RowRef};
use crate::tree::Frontier;

/// How long a writer waits for one in another process.
pub(super) const BUSY: Duration = Duration::from_secs(10);

const TABLES: &str = "
CREATE TABLE ledger_genesis (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    format INTEGER NOT NULL,
    ledger_id TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
CREATE TABLE ledger_head (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    seq INTEGER NOT NULL,
    hash BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    frontier BLOB NOT NULL,
    pruned_seq INTEGER NOT NULL DEFAULT 0,
    pruned_hash BLOB,
    pruned_epoch INTEGER,
    pruned_frontier BLOB,
    pruned_note TEXT
) STRICT;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    domain TEXT NOT NULL,
    aggregate_type TEXT NOT NULL,
    aggregate_id TEXT NOT NULL,
    aggregate_version INTEGER NOT NULL,
    event_type TEXT NOT NULL,
    event_version INTEGER NOT NULL,
    occurred_at INTEGER NOT NULL,
    actor_type TEXT NOT NULL,
    actor_id TEXT NOT NULL,
    actor_on_behalf_of TEXT,
    org_id TEXT,
    app_id TEXT,
    env_id TEXT,
    request_id TEXT NOT NULL,
    idempotency_key TEXT,
    correlation_id TEXT,
    causation_seq INTEGER,
    decision_seq INTEGER,
    payload TEXT NOT NULL,
    prev_hash BLOB NOT NULL,
    hash BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_by_aggregate
    ON events (aggregate_id, aggregate_type, domain, aggregate_version);
CREATE TABLE aggregates (
    domain TEXT NOT NULL,
    aggregate_type TEXT NOT NULL,
    aggregate_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (aggregate_id, aggregate_type, domain)
) STRICT, WITHOUT ROWID;
CREATE TABLE tree (
    level INTEGER NOT NULL,
    position INTEGER NOT NULL,
    hash BLOB NOT NULL,
    PRIMARY KEY (level, position)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER events_are_never_updated BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'events are never updated'); END;
CREATE TRIGGER events_are_only_pruned BEFORE DELETE ON events
WHEN OLD.seq > (SELECT pruned_seq FROM ledger_head)
BEGIN SELECT RAISE(ABORT, 'events are only deleted after they are archived'); END;
";

/// Who uses a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// The writer thread: may change everything.
    Write,
    /// A reader of a live ledger: changes nothing, sees the WAL.
    Read,
    /// Someone who checks files that may be evidence: leaves no trace.
    Inspect,
}

/// Opens a connection to an existing file.
pub(super) fn connect(path: &Path, usage: Use) -> Result<Connection, StoreError> {
    if usage == Use::Inspect {
        return inspect::connect(path);
    }
    // Even a reader of a WAL database writes the shared memory file, so both
    // open for writing; `query_only` keeps a reader from more.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(store_error)?;
    set_up(&connection, usage).map_err(store_error)?;
    Ok(connection)
}

fn set_up(connection: &Connection, usage: Use) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(32);
    connection.pragma_update(None, "trusted_schema", false)?;
    match usage {
        Use::Read | Use::Inspect => connection.pragma_update(None, "query_only", true),
        Use::Write => {
            use_wal(connection)?;
            // The writer checkpoints by its own rules, see `maintain`.
            connection.pragma_update(None, "wal_autocheckpoint", 0)?;
            connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
            connection.pragma_update(None, "cache_size", -16_384)?;
            connection.pragma_update(None, "synchronous", "FULL")
        }
    }
}

/// Creates the tables and the genesis record unless they are there.
pub(super) fn create(connection: &mut Connection, genesis: &Genesis) -> Result<(), StoreError> {
    let behaviour = rusqlite::TransactionBehavior::Immediate;
    let transaction = connection
        .transaction_with_behavior(behaviour)
        .map_err(store_error)?;
    if !has_table(&transaction, "ledger_genesis").map_err(store_error)? {
        insert_genesis(&transaction, genesis).map_err(store_error)?;
    }
    transaction.commit().map_err(store_error)
}

/// Whether all tables are tables: a view in their place could compute for
/// ever, or show each reader something else.
pub(super) fn has_tables(connection: &Connection) -> rusqlite::Result<bool> {
    let names = [
        "ledger_genesis",
        "ledger_head",
        "events",
        "aggregates",
        "tree",
    ];
    let there = |found, name| Ok(found && has_table(connection, name)?);
    names.into_iter().try_fold(true, there)
}

pub(super) fn has_table(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1")?
        .exists([name])
}

fn insert_genesis(connection: &Connection, genesis: &Genesis) -> rusqlite::Result<()> {
    connection.execute_batch(TABLES)?;
    connection.execute(
        "INSERT INTO ledger_genesis (id, format, ledger_id, created_at) VALUES (1, ?1, ?2, ?3)",
        params![
            FORMAT,
            genesis.ledger_id.to_string(),
            genesis.created_at.as_micros()
        ],
    )?;
    let head = Head::empty(genesis);
    connection.execute(
        "INSERT INTO ledger_head (id, seq, hash, epoch, frontier) VALUES (1, 0, ?1, ?2, ?3)",
        params![
            head.hash.as_bytes(),
            integer(head.epoch),
            head.frontier.to_bytes()
        ],
    )?;
    Ok(())
}

/// The stored record cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error("the `{table}` row of the ledger can't be understood")]
pub(super) struct BadRow {
    table: &'static str,
}

/// A corruption error for a row of the ledger's own bookkeeping.
pub(super) fn bad_row(table: &'static str) -> StoreError {
    StoreError::Corrupt(std::sync::Arc::new(BadRow { table }))
}

/// Reads the genesis record.
pub(super) fn genesis(connection: &Connection) -> Result<Genesis, StoreError> {
    let sql = "SELECT format, ledger_id, created_at FROM ledger_genesis WHERE id = 1";
    let row = connection
        .query_row(sql, [], |row| {
            Ok((
                row.get::<_, u32>(0)?,
                row.get::<_, String>(1)?,
                row.get::<_, i64>(2)?,
            ))
        })
        .optional()
        .map_err(store_error)?;
    match row {
        Some((FORMAT, ledger_id, micros)) => Ok(Genesis {
            ledger_id: ledger_id.parse().map_err(|_| bad_row("ledger_genesis"))?,
            created_at: Timestamp::from_micros(micros),
        }),
        _ => Err(bad_row("ledger_genesis")),
    }
}

/// Reads the head row.
pub(super) fn head(connection: &Connection) -> Result<Head, StoreError> {
    let sql = "SELECT seq, hash, epoch, frontier FROM ledger_head WHERE id = 1";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let mut rows = statement.query([]).map_err(store_error)?;
    let row = rows.next().map_err(store_error)?;
    row.and_then(|row| decode_head(row, 0))
        .ok_or_else(|| bad_row("ledger_head"))
}

/// A head stored in four columns from `first` on.
pub(super) fn decode_head(row: &Row<'_>, first: usize) -> Option<Head> {
    let seq = u64::try_from(row.get_ref(first).ok()?.as_i64().ok()?).ok()?;
    let hash = row.get_ref(first + 1).ok()?.as_blob().ok()?;
    let epoch = u64::try_from(row.get_ref(first + 2).ok()?.as_i64().ok()?).ok()?;
    let frontier = row.get_ref(first + 3).ok()?.as_blob().ok()?;
    Some(Head {
        seq,
        hash: Digest(hash.try_into().ok()?),
        epoch,
        frontier: Frontier::from_bytes(seq, frontier)?,
    })
}

/// `SELECT` of all columns in the order of [`COLUMNS`].
pub(super) fn select(rest: &str) -> String {
    format!("SELECT {} FROM events {rest}", COLUMNS.join(", "))
}

/// Passes every row to `visit`; `expected` is the position of the first.
pub(super) fn walk(
    rows: &mut Rows<'_>,
    mut expected: u64,
    visit: &mut Visit<'_>,
) -> Result<(), StoreError> {
    while let Some(row) = rows.next().map_err(store_error)? {
        let decoded = decode(row, expected);
        expected = match &decoded {
            Ok(row) => row.seq.saturating_add(1),
            Err(fault) => fault.seq.saturating_add(1),
        };
        if visit(decoded).is_break() {
            break;
        }
    }
    Ok(())
}

/// Borrows one row's columns, trusting neither their type nor their value.
pub(super) fn decode<'r>(row: &'r Row<'_>, expected: u64) -> Result<RowRef<'r>, RowFault> {
    let seq = number(row, 0).unwrap_or(expected);
    let fault = |index: usize| RowFault {
        seq,
        column: COLUMNS.get(index).copied().unwrap_or("unknown"),
    };
    let need = |index| text(row, index).flatten().ok_or_else(|| fault(index));
    let maybe = |index| text(row, index).ok_or_else(|| fault(index));
    let count = |index| number(row, index).ok_or_else(|| fault(index));
    let maybe_count = |index| match row.get_ref(index) {
        Ok(ValueRef::Null) => Ok(None),
        _ => count(index).map(Some),
    };
    let digest = |index| blob(row, index).ok_or_else(|| fault(index));
    Ok(RowRef {
        seq: count(0)?,
        domain: need(1)?,
        aggregate_type: need(2)?,
        aggregate_id: need(3)?,
        aggregate_version: count(4)?,
        event_type: need(5)?,
        event_version: u32::try_from(count(6)?).map_err(|_| fault(6))?,
        occurred_at: moment(row, 7).ok_or_else(|| fault(7))?,
        actor_type: need(8)?,
        actor_id: need(9)?,
        actor_on_behalf_of: maybe(10)?,
        org_id: maybe(11)?,
        app_id: maybe(12)?,
        env_id: maybe(13)?,
        request_id: need(14)?,
        idempotency_key: maybe(15)?,
        correlation_id: maybe(16)?,
        causation_seq: maybe_count(17)?,
        decision_seq: maybe_count(18)?,
        payload: need(19)?,
        prev_hash: digest(20)?,
        hash: digest(21)?,
    })
}

/// The text of a column; `Some(None)` for NULL, `None` for anything else.
#[expect(
    clippy::option_option,
    reason = "NULL and a wrong type are different findings"
)]
fn text<'r>(row: &'r Row<'_>, index: usize) -> Option<Option<&'r str>> {
    match row.get_ref(index).ok()? {
        ValueRef::Null => Some(None),
        ValueRef::Text(bytes) => std::str::from_utf8(bytes).ok().map(Some),
        _ => None,
    }
}

fn number(row: &Row<'_>, index: usize) -> Option<u64> {
    u64::try_from(row.get_ref(index).ok()?.as_i64().ok()?).ok()
}

/// A moment exactly as stored: one outside the calendar would be clamped, and
/// so hide a changed column.
fn moment(row: &Row<'_>, index: usize) -> Option<Timestamp> {
    let micros = row.get_ref(index).ok()?.as_i64().ok()?;
    let moment = Timestamp::from_micros(micros);
    (moment.as_micros() == micros).then_some(moment)
}

fn blob(row: &Row<'_>, index: usize) -> Option<Digest> {
    match row.get_ref(index).ok()? {
        ValueRef::Blob(bytes) => bytes.try_into().ok().map(Digest),
        _ => None,
    }
}
