//! The two engines behind one closed set of functions.
//!
//! This is the whole contract between the ledger and its storage: add an
//! engine by adding an arm everywhere here. Every function blocks and is only
//! called from the writer's thread or from a thread that may block; none may
//! be called from outside this crate. The rules stand on each function.

use std::ops::ControlFlow;
use std::path::PathBuf;

use fluffy_base::Digest;
use tokio::sync::watch;

use crate::chain::{AggregateKey, Command, Genesis, Head};
use crate::class::Durability;
use crate::error::StoreError;
use crate::event::{Aggregate, Domain, Event};
use crate::postgres;
use crate::row::RowRef;
use crate::sqlite;
use crate::tree::Subtrees;
use crate::view::{Cell, Rows, Schema, Statement};

/// A row that can't be read as an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowFault {
    /// Its position, where that column can be read; else the one expected.
    pub(crate) seq: u64,
    /// The column that is wrong.
    pub(crate) column: &'static str,
}

/// What a scan calls for each row, in ascending `seq`.
pub(crate) type Visit<'v> = dyn FnMut(Result<RowRef<'_>, RowFault>) -> ControlFlow<()> + 'v;

/// Where the hot rows start, and what came before them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Anchor {
    /// The chain's end just before the first hot row.
    pub(crate) head: Head,
    /// The signed checkpoint of exactly that size, empty if unsigned.
    pub(crate) note: String,
}

/// Reading, from any thread, without ever blocking the writer.
#[derive(Debug)]
pub(crate) enum Engine {
    /// One file on one machine.
    Sqlite(sqlite::Store),
    /// Several servers over one database.
    Postgres(postgres::Store),
}

/// Writing, by the one writer thread of this process.
#[derive(Debug)]
pub(crate) enum Writer {
    /// One file on one machine.
    Sqlite(sqlite::Writer),
    /// Several servers over one database.
    Postgres(postgres::Writer),
}

impl Writer {
    /// Stores the commands in one transaction: all of it or nothing.
    ///
    /// Under the lock that serialises writers of all processes: reads the
    /// head, lets `chain::seal` number and refuse, stores the events of the
    /// sealed commands, the completed subtrees, the changed versions and the
    /// new head. With `Durability::Security` it returns only when that is on
    /// disk. On error every command is as it was, and may be given again.
    pub(crate) fn commit(
        &mut self,
        commands: &mut [Command],
        durability: Durability,
    ) -> Result<Head, StoreError> {
        match self {
            Self::Sqlite(writer) => writer.commit(commands, durability),
            Self::Postgres(writer) => writer.commit(commands, durability),
        }
    }

    /// Makes everything committed so far durable, whatever its class.
    pub(crate) fn sync(&mut self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(writer) => writer.sync(),
            Self::Postgres(writer) => writer.sync(),
        }
    }

    /// Does what is due now and then; called about once a second when idle
    /// and after each commit.
    pub(crate) fn maintain(&mut self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(writer) => writer.maintain(),
            Self::Postgres(writer) => writer.maintain(),
        }
    }
}

impl Engine {
    /// A writer of its own connection.
    pub(crate) fn writer(&self) -> Result<Writer, StoreError> {
        match self {
            Self::Sqlite(store) => store.writer().map(Writer::Sqlite),
            Self::Postgres(store) => store.writer().map(Writer::Postgres),
        }
    }

    /// The most events in one transaction.
    pub(crate) fn group_events(&self) -> usize {
        match self {
            Self::Sqlite(_) => 4_096,
            // Writers of other processes wait for the head row meanwhile.
            Self::Postgres(_) => 512,
        }
    }

    /// Ticks when another process may have appended; none if the engine can't
    /// tell, and readers have to look for themselves.
    pub(crate) fn heard(&self) -> Option<watch::Receiver<u64>> {
        match self {
            Self::Sqlite(_) => None,
            Self::Postgres(store) => Some(store.heard()),
        }
    }

    /// The record the ledger started from.
    pub(crate) fn genesis(&self) -> Genesis {
        match self {
            Self::Sqlite(store) => store.genesis(),
            Self::Postgres(store) => store.genesis(),
        }
    }

    /// The end of the chain as committed.
    pub(crate) fn head(&self) -> Result<Head, StoreError> {
        match self {
            Self::Sqlite(store) => store.head(),
            Self::Postgres(store) => store.head(),
        }
    }

    /// What lies before the hot rows; none if nothing was pruned.
    pub(crate) fn anchor(&self) -> Result<Option<Anchor>, StoreError> {
        match self {
            Self::Sqlite(store) => store.anchor(),
            Self::Postgres(store) => store.anchor(),
        }
    }

    /// Where what was pruned is, if that is beside the database.
    pub(crate) fn archive(&self) -> Option<PathBuf> {
        match self {
            Self::Sqlite(store) => Some(store.archive()),
            Self::Postgres(_) => None,
        }
    }

    /// Drops the hot rows up to the anchor, which becomes the new start.
    pub(crate) fn prune(&self, anchor: &Anchor) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(store) => store.prune(anchor),
            Self::Postgres(store) => store.prune(anchor),
        }
    }

    /// Bytes that the events and everything kept beside them take up.
    pub(crate) fn bytes_used(&self) -> Result<u64, StoreError> {
        match self {
            Self::Sqlite(store) => store.bytes_used(),
            Self::Postgres(store) => store.bytes_used(),
        }
    }

    /// Calls `visit` for the rows from `from` on until it breaks.
    ///
    /// Sees one consistent moment. A row that can't be decoded is passed on
    /// as a fault; only an error of the storage itself ends the scan early.
    pub(crate) fn scan(&self, from: u64, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(store) => store.scan(from, visit),
            Self::Postgres(store) => store.scan(from, visit),
        }
    }

    /// The events of one aggregate after a version, oldest first.
    pub(crate) fn read_aggregate(
        &self,
        key: &AggregateKey,
        after_version: u64,
        limit: usize,
    ) -> Result<Vec<Event>, StoreError> {
        match self {
            Self::Sqlite(store) => store.read_aggregate(key, after_version, limit),
            Self::Postgres(store) => store.read_aggregate(key, after_version, limit),
        }
    }

    /// The version of an aggregate, 0 if it has no event.
    pub(crate) fn version(&self, key: &AggregateKey) -> Result<u64, StoreError> {
        match self {
            Self::Sqlite(store) => store.version(key),
            Self::Postgres(store) => store.version(key),
        }
    }

    /// Passes every stored version to `visit`, with domain, kind and id as
    /// one text with NULs between; none if it is no number.
    pub(crate) fn versions(
        &self,
        visit: &mut dyn FnMut(&str, Option<u64>),
    ) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(store) => store.versions(visit),
            Self::Postgres(store) => store.versions(visit),
        }
    }

    /// Hashes of complete subtrees; see [`Subtrees::stored`].
    fn subtrees(&self, level: u8, position: u64, count: u64) -> Result<Vec<Digest>, StoreError> {
        match self {
            Self::Sqlite(store) => store.subtrees(level, position, count),
            Self::Postgres(store) => store.subtrees(level, position, count),
        }
    }

    /// Opens a view for writing, creating it with its checkpoint at 0; a view
    /// of another schema version is emptied and starts again.
    pub(crate) fn view(
        &self,
        name: &str,
        schema: &Schema,
        edition: Edition,
    ) -> Result<View, StoreError> {
        match self {
            Self::Sqlite(store) => store.view(name, schema, edition).map(View::Sqlite),
            Self::Postgres(store) => store.view(name, schema, edition).map(View::Postgres),
        }
    }

    /// Puts the next edition of a view in the place of the current one.
    pub(crate) fn publish_view(&self, name: &str, next: View) -> Result<(), StoreError> {
        match (self, next) {
            (Self::Sqlite(store), View::Sqlite(next)) => store.publish_view(name, next),
            (Self::Postgres(store), View::Postgres(next)) => store.publish_view(name, next),
            // A view only ever goes back to the engine that opened it.
            (Self::Sqlite(_), View::Postgres(_)) | (Self::Postgres(_), View::Sqlite(_)) => {
                Err(StoreError::other(ForeignView))
            }
        }
    }

    /// Runs one read-only query on the current edition of a view.
    pub(crate) fn query_view(
        &self,
        name: &str,
        sql: &str,
        params: &[Cell],
    ) -> Result<Rows, StoreError> {
        match self {
            Self::Sqlite(store) => store.query_view(name, sql, params),
            Self::Postgres(store) => store.query_view(name, sql, params),
        }
    }

    /// The events from `from` on, without a hole, at most `limit` and about
    /// four megabytes; empty at the end of the chain.
    pub(crate) fn read(&self, from: u64, limit: usize) -> Result<Vec<Event>, StoreError> {
        const MAX_BYTES: usize = 4 << 20;
        let mut events: Vec<Event> = Vec::new();
        let mut bytes = 0;
        let mut failed = None;
        self.scan(from, &mut |row| {
            if events.len() >= limit || bytes >= MAX_BYTES {
                return ControlFlow::Break(());
            }
            let wanted = from + events.len() as u64;
            match row.and_then(|row| decode(&row)) {
                Ok(event) if event.seq == wanted => {
                    bytes += event.payload.as_str().len() + 512;
                    events.push(event);
                    ControlFlow::Continue(())
                }
                Ok(_) => {
                    failed = Some(StoreError::SequenceGap { seq: wanted });
                    ControlFlow::Break(())
                }
                Err(RowFault { seq, column }) => {
                    failed = Some(StoreError::Malformed { seq, column });
                    ControlFlow::Break(())
                }
            }
        })?;
        match failed {
            // What was read before the fault is good; the next call meets it.
            Some(error) if events.is_empty() => Err(error),
            _ => Ok(events),
        }
    }
}

fn decode(row: &RowRef<'_>) -> Result<Event, RowFault> {
    row.to_event().map_err(|malformed| RowFault {
        seq: row.seq,
        column: malformed.column,
    })
}

impl Subtrees for &Engine {
    type Error = StoreError;

    fn stored(&mut self, level: u8, position: u64, count: u64) -> Result<Vec<Digest>, StoreError> {
        self.subtrees(level, position, count)
    }
}

/// Which of the two copies of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edition {
    /// The one readers see.
    Current,
    /// The one a rebuild fills from zero; always starts empty.
    Next,
}

/// A view was given to an engine that did not open it.
#[derive(Debug, thiserror::Error)]
#[error("the view belongs to another engine")]
struct ForeignView;

/// The writing side of one view.
#[derive(Debug)]
pub(crate) enum View {
    /// A database file of its own.
    Sqlite(sqlite::View),
    /// A schema of its own.
    Postgres(postgres::View),
}

impl View {
    /// The last event that is in the view.
    pub(crate) fn applied(&mut self) -> Result<u64, StoreError> {
        match self {
            Self::Sqlite(view) => view.applied(),
            Self::Postgres(view) => view.applied(),
        }
    }

    /// Runs the statements and moves the checkpoint from `from` to `to`, in
    /// one transaction; fails without effect if it is not at `from`.
    pub(crate) fn commit(
        &mut self,
        statements: &[Statement],
        from: u64,
        to: u64,
    ) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(view) => view.commit(statements, from, to),
            Self::Postgres(view) => view.commit(statements, from, to),
        }
    }

    /// The digest of all tables of the schema, row by row.
    pub(crate) fn digest(&mut self, schema: &Schema) -> Result<Digest, StoreError> {
        match self {
            Self::Sqlite(view) => view.digest(schema),
            Self::Postgres(view) => view.digest(schema),
        }
    }
}

/// The key of an aggregate as engines take it.
pub(crate) fn aggregate_key(domain: Domain, aggregate: &Aggregate) -> AggregateKey {
    AggregateKey::new(domain, aggregate)
}
