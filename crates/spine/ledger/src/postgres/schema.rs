//! The tables in schema `ledger`, and how their rows are read.
//!
//! Created by whoever comes first, under a lock; raised step by step from one
//! version to the next. Never change a step: add one. The triggers keep honest
//! programs honest; whoever drops them is found by verification.

use std::str::FromStr;

use fluffy_base::{Digest, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::failure::Failure;
use super::integer;
use super::session::{Session, wait};
use crate::chain::{FORMAT, Genesis, Head};
use crate::engine::RowFault;
use crate::row::{COLUMNS, RowRef};
use crate::tree::Frontier;

/// Step `n` leads from version `n` to `n + 1`.
const STEPS: [&str; 1] = [FIRST];

/// Only one process creates or changes the tables at a time.
const CREATE_LOCK: i64 = 0x666c_7566_6679_0001;

/// Partitions are ranges of `seq`: only then can the database itself refuse
/// two events with one `seq`, and order by time is what no clock can promise.
/// `ledger_head` is updated with every commit, so its page keeps room for the
/// next versions of its only row.
const FIRST: &str = "
CREATE TABLE ledger_genesis (
    id SMALLINT PRIMARY KEY CHECK (id = 1),
    format INTEGER NOT NULL,
    ledger_id TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    partition_events BIGINT NOT NULL
);
CREATE TABLE ledger_head (
    id SMALLINT PRIMARY KEY CHECK (id = 1),
    seq BIGINT NOT NULL,
    hash BYTEA NOT NULL,
    epoch BIGINT NOT NULL,
    frontier BYTEA NOT NULL
) WITH (fillfactor = 10);
CREATE TABLE ledger_anchor (
    id SMALLINT PRIMARY KEY CHECK (id = 1),
    seq BIGINT NOT NULL,
    hash BYTEA NOT NULL,
    epoch BIGINT NOT NULL,
    frontier BYTEA NOT NULL,
    note TEXT NOT NULL
);
CREATE TABLE events (
    seq BIGINT NOT NULL,
    domain TEXT COLLATE \"C\" NOT NULL,
    aggregate_type TEXT COLLATE \"C\" NOT NULL,
    aggregate_id TEXT COLLATE \"C\" NOT NULL,
    aggregate_version BIGINT NOT NULL,
    event_type TEXT COLLATE \"C\" NOT NULL,
    event_version BIGINT NOT NULL,
    occurred_at BIGINT NOT NULL,
    actor_type TEXT COLLATE \"C\" NOT NULL,
    actor_id TEXT COLLATE \"C\" NOT NULL,
    actor_on_behalf_of TEXT COLLATE \"C\",
    org_id TEXT COLLATE \"C\",
    app_id TEXT COLLATE \"C\",
    env_id TEXT COLLATE \"C\",
    request_id TEXT COLLATE \"C\" NOT NULL,
    idempotency_key TEXT COLLATE \"C\",
    correlation_id TEXT COLLATE \"C\",
    causation_seq BIGINT,
    decision_seq BIGINT,
    payload TEXT COLLATE \"C\" NOT NULL,
    prev_hash BYTEA NOT NULL,
    hash BYTEA NOT NULL,
    PRIMARY KEY (seq)
) PARTITION BY RANGE (seq);
CREATE INDEX events_by_aggregate
    ON events (aggregate_id, aggregate_type, domain, aggregate_version);
CREATE TABLE aggregates (
    domain TEXT COLLATE \"C\" NOT NULL,
    aggregate_type TEXT COLLATE \"C\" NOT NULL,
    aggregate_id TEXT COLLATE \"C\" NOT NULL,
    version BIGINT NOT NULL,
    PRIMARY KEY (aggregate_id, aggregate_type, domain)
) WITH (fillfactor = 70);
CREATE TABLE tree (
    level SMALLINT NOT NULL,
    position BIGINT NOT NULL,
    hash BYTEA NOT NULL,
    PRIMARY KEY (level, position)
);
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.seq <= (SELECT seq FROM ledger.ledger_anchor WHERE id = 1) THEN
            RETURN OLD;
        END IF;
        RAISE EXCEPTION 'events are only deleted after they are archived';
    END IF;
    RAISE EXCEPTION 'events are never changed';
END $$;
CREATE TRIGGER events_are_never_changed BEFORE UPDATE OR DELETE ON events
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER events_are_never_emptied BEFORE TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
REVOKE UPDATE, TRUNCATE ON events FROM CURRENT_USER;
";

/// What is settled when a ledger is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Foundation {
    pub(super) genesis: Genesis,
    pub(super) partition_events: u64,
}

/// The database holds a ledger of another version, or can't hold one.
#[derive(Debug, thiserror::Error)]
enum Unsuitable {
    #[error("the ledger's tables have version {version}, newer than this program's {known}")]
    Newer { version: i32, known: usize },
    #[error("the database's encoding is `{encoding}`, not UTF8")]
    Encoding { encoding: String },
    #[error("the direct address leads to another database than the one through the pooler")]
    Elsewhere,
}

/// Creates or raises the tables, and reads what the ledger was founded on.
pub(super) fn create(session: &mut Session, wanted: &Foundation) -> Result<Foundation, Failure> {
    session.batch("BEGIN")?;
    let created = raise(session, wanted).and_then(|()| foundation(session));
    match created {
        Ok(found) => {
            session.batch("COMMIT")?;
            Ok(found)
        }
        Err(failure) => {
            // The first failure is the one to tell; the session ends anyway.
            drop(session.batch("ROLLBACK"));
            Err(failure)
        }
    }
}

fn raise(session: &Session, wanted: &Foundation) -> Result<(), Failure> {
    session.batch(&format!("SELECT pg_advisory_xact_lock({CREATE_LOCK})"))?;
    let client = session.client();
    let encoding: String = wait(client.query_one("SHOW server_encoding", &[]))??.try_get(0)?;
    if encoding != "UTF8" {
        return Err(unsuitable(Unsuitable::Encoding { encoding }));
    }
    // Not asked for again, so that a role that may not create can still open.
    let there = "SELECT to_regclass('ledger.ledger_schema') IS NOT NULL";
    if !wait(client.query_one(there, &[]))??.try_get::<_, bool>(0)? {
        session.batch(
            "CREATE SCHEMA IF NOT EXISTS ledger; \
             CREATE TABLE ledger_schema (version INTEGER NOT NULL)",
        )?;
    }
    let row = wait(client.query_opt("SELECT version FROM ledger_schema", &[]))??;
    let version = row.map_or(Ok(0), |row| row.try_get::<_, i32>(0))?;
    let done = usize::try_from(version).map_err(|_| bad_row("ledger_schema"))?;
    let Some(steps) = STEPS.get(done..) else {
        let known = STEPS.len();
        return Err(unsuitable(Unsuitable::Newer { version, known }));
    };
    if steps.is_empty() {
        return Ok(());
    }
    for step in steps {
        session.batch(step)?;
    }
    let version = STEPS.len();
    session.batch(&format!(
        "DELETE FROM ledger_schema; INSERT INTO ledger_schema (version) VALUES ({version})"
    ))?;
    if done == 0 {
        found(session, wanted)?;
    }
    Ok(())
}

fn unsuitable(reason: Unsuitable) -> Failure {
    Failure::Sorted(crate::error::StoreError::other(reason))
}

/// Writes the genesis record and the head of an empty ledger.
fn found(session: &Session, wanted: &Foundation) -> Result<(), Failure> {
    let genesis = &wanted.genesis;
    let client = session.client();
    wait(client.execute(
        "INSERT INTO ledger_genesis (id, format, ledger_id, created_at, partition_events) \
         VALUES (1, $1, $2, $3, $4)",
        &[
            &i32::try_from(FORMAT).unwrap_or(i32::MAX),
            &genesis.ledger_id.to_string(),
            &genesis.created_at.as_micros(),
            &integer(wanted.partition_events),
        ],
    ))??;
    let head = Head::empty(genesis);
    wait(client.execute(
        "INSERT INTO ledger_head (id, seq, hash, epoch, frontier) VALUES (1, $1, $2, $3, $4)",
        &[
            &integer(head.seq),
            &head.hash.as_bytes().as_slice(),
            &integer(head.epoch),
            &head.frontier.to_bytes(),
        ],
    ))??;
    Ok(())
}

fn foundation(session: &Session) -> Result<Foundation, Failure> {
    let sql = "SELECT format, ledger_id, created_at, partition_events \
        FROM ledger_genesis WHERE id = 1";
    let row = wait(session.client().query_opt(sql, &[]))??;
    row.and_then(|row| decode_foundation(&row))
        .ok_or_else(|| bad_row("ledger_genesis"))
}

/// Makes sure that a session leads to the ledger that another one opened.
pub(super) fn is_same(session: &mut Session, opened: &Foundation) -> Result<(), Failure> {
    let there = "SELECT to_regclass('ledger.ledger_genesis') IS NOT NULL";
    let there = wait(session.client().query_one(there, &[]))??;
    if !there.try_get::<_, bool>(0)? || foundation(session)? != *opened {
        return Err(unsuitable(Unsuitable::Elsewhere));
    }
    Ok(())
}

fn decode_foundation(row: &Row) -> Option<Foundation> {
    let format: i32 = row.try_get(0).ok()?;
    let ledger_id: &str = row.try_get(1).ok()?;
    let partition_events = number(row, 3).filter(|events| *events > 0)?;
    (u32::try_from(format) == Ok(FORMAT)).then_some(())?;
    Some(Foundation {
        genesis: Genesis {
            ledger_id: FromStr::from_str(ledger_id).ok()?,
            created_at: moment(row, 2)?,
        },
        partition_events,
    })
}

/// A failure for a row of the ledger's own bookkeeping.
pub(super) fn bad_row(table: &'static str) -> Failure {
    Failure::BadRow { table }
}

/// A head stored in the first four columns.
pub(super) fn decode_head(row: &Row) -> Option<Head> {
    let seq = number(row, 0)?;
    Some(Head {
        seq,
        hash: digest(row, 1)?,
        epoch: number(row, 2)?,
        frontier: Frontier::from_bytes(seq, row.try_get(3).ok()?)?,
    })
}

/// `SELECT` of all columns in the order of [`COLUMNS`].
pub(super) fn select(rest: &str) -> String {
    format!("SELECT {} FROM events {rest}", COLUMNS.join(", "))
}

/// Borrows one row's columns, trusting neither their type nor their value.
pub(super) fn decode(row: &Row, expected: u64) -> Result<RowRef<'_>, RowFault> {
    let seq = number(row, 0).unwrap_or(expected);
    let fault = |index: usize| RowFault {
        seq,
        column: COLUMNS.get(index).copied().unwrap_or("unknown"),
    };
    let maybe = |index| text(row, index).map_err(|_| fault(index));
    let need = |index| maybe(index)?.ok_or_else(|| fault(index));
    let count = |index| number(row, index).ok_or_else(|| fault(index));
    let maybe_count = |index| match row.try_get::<_, Option<i64>>(index) {
        Ok(None) => Ok(None),
        _ => count(index).map(Some),
    };
    let hash = |index| digest(row, index).ok_or_else(|| fault(index));
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
        prev_hash: hash(20)?,
        hash: hash(21)?,
    })
}

fn text(row: &Row, index: usize) -> Result<Option<&str>, tokio_postgres::Error> {
    row.try_get(index)
}

pub(super) fn number(row: &Row, index: usize) -> Option<u64> {
    u64::try_from(get::<i64>(row, index)?).ok()
}

/// A moment exactly as stored: one outside the calendar would be clamped, and
/// so hide a changed column.
fn moment(row: &Row, index: usize) -> Option<Timestamp> {
    let micros = get(row, index)?;
    let moment = Timestamp::from_micros(micros);
    (moment.as_micros() == micros).then_some(moment)
}

pub(super) fn digest(row: &Row, index: usize) -> Option<Digest> {
    get::<&[u8]>(row, index)?.try_into().ok().map(Digest)
}

fn get<'r, T: FromSql<'r>>(row: &'r Row, index: usize) -> Option<T> {
    row.try_get(index).ok()
}
