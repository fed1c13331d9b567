//! Reading the SQLite engine, from any thread, beside the writer.
//!
//! Readers have connections of their own and see one moment each; WAL keeps
//! them from ever blocking the writer. Nothing here appends.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fluffy_base::Digest;
use rusqlite::backup::Backup;
use rusqlite::{Connection, params};

use super::files::{has_traces, present};
use super::schema::{self, Use};
use super::view::{self, View};
use super::writer::{self, Writer};
use super::{integer, private_directory, private_file, store_error};
use crate::archive::ARCHIVE;
use crate::chain::{AggregateKey, Genesis, Head};
use crate::engine::{Anchor, Edition, Visit};
use crate::error::StoreError;
use crate::event::Event;
use crate::tree;
use crate::view::{Cell, Rows, Schema};

/// How many idle read connections are kept.
const MAX_IDLE: usize = 8;

/// A ledger's directory, opened.
#[derive(Debug)]
pub(crate) struct Store {
    directory: PathBuf,
    database: PathBuf,
    readers: Use,
    genesis: Genesis,
    idle: Mutex<Vec<Connection>>,
    /// Held so that nobody salvages what is in use; last, to be closed last.
    _presence: Option<File>,
}

/// The database is not there, but what lies beside it says that it was.
#[derive(Debug, thiserror::Error)]
#[error("`{}` is gone, though the ledger's other files are there", path.display())]
struct DatabaseGone {
    path: PathBuf,
}

impl Store {
    /// The database file inside a ledger's directory.
    pub(crate) fn database(directory: &Path) -> PathBuf {
        directory.join("ledger.db")
    }

    /// Opens the directory's database, creating it from `genesis` if new.
    pub(crate) fn open(directory: &Path, genesis: &Genesis) -> Result<Self, StoreError> {
        private_directory(directory).map_err(StoreError::other)?;
        let presence = present(directory).map_err(StoreError::other)?;
        let path = Self::database(directory);
        // A ledger that got lost must not be replaced by an empty one.
        if fs::metadata(&path).map_or(0, |file| file.len()) == 0 && has_traces(directory) {
            return Err(StoreError::Corrupt(Arc::new(DatabaseGone { path })));
        }
        private_file(&path).map_err(StoreError::other)?;
        let mut connection = schema::connect(&path, Use::Write)?;
        schema::create(&mut connection, genesis)?;
        Ok(Self {
            directory: directory.to_owned(),
            genesis: schema::genesis(&connection)?,
            database: path,
            readers: Use::Read,
            _presence: Some(presence),
            idle: Mutex::default(),
        })
    }

    /// The directory of archived segments.
    pub(crate) fn archive(&self) -> PathBuf {
        self.directory.join(ARCHIVE)
    }

    /// Opens a database file for reading only, without leaving a trace.
    /// Nothing that writes may be called on it: it would fail, or leave one.
    pub(crate) fn inspect(database: &Path) -> Result<Self, StoreError> {
        let connection = schema::connect(database, Use::Inspect)?;
        if !schema::has_tables(&connection).map_err(store_error)? {
            return Err(schema::bad_row("sqlite_schema"));
        }
        Ok(Self {
            directory: database.parent().unwrap_or(Path::new(".")).to_owned(),
            genesis: schema::genesis(&connection)?,
            database: database.to_owned(),
            readers: Use::Inspect,
            _presence: None,
            idle: Mutex::new(vec![connection]),
        })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn genesis(&self) -> Genesis {
        self.genesis
    }

    pub(crate) fn writer(&self) -> Result<Writer, StoreError> {
        Writer::open(&self.database)
    }

    pub(crate) fn head(&self) -> Result<Head, StoreError> {
        self.with_reader(schema::head)
    }

    pub(crate) fn anchor(&self) -> Result<Option<Anchor>, StoreError> {
        self.with_reader(anchor)
    }

    pub(crate) fn scan(&self, from: u64, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        self.with_reader(|connection| scan(connection, from, visit))
    }

    pub(crate) fn read_aggregate(
        &self,
        key: &AggregateKey,
        after_version: u64,
        limit: usize,
    ) -> Result<Vec<Event>, StoreError> {
        let (domain, kind, id) = key.parts();
        let sql = schema::select(
            "WHERE aggregate_id = ?1 AND aggregate_type = ?2 AND domain = ?3 \
             AND aggregate_version > ?4 ORDER BY aggregate_version LIMIT ?5",
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.with_reader(|connection| {
            let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
            let found = params![id, kind, domain, integer(after_version), limit];
            let mut rows = statement.query(found).map_err(store_error)?;
            let mut events = Vec::new();
            while let Some(row) = rows.next().map_err(store_error)? {
                let malformed = |seq, column| StoreError::Malformed { seq, column };
                let row =
                    schema::decode(row, 0).map_err(|fault| malformed(fault.seq, fault.column))?;
                events.push(
                    row.to_event()
                        .map_err(|fault| malformed(row.seq, fault.column))?,
                );
            }
            Ok(events)
        })
    }

    pub(crate) fn version(&self, key: &AggregateKey) -> Result<u64, StoreError> {
        self.with_reader(|connection| writer::version(connection, key))
    }

    /// Passes every stored version to `visit`, with domain, kind and id as
    /// one text with NULs between; none if it is no number.
    pub(crate) fn versions(
        &self,
        visit: &mut dyn FnMut(&str, Option<u64>),
    ) -> Result<(), StoreError> {
        let sql = "SELECT domain, aggregate_type, aggregate_id, version FROM aggregates";
        self.with_reader(|connection| {
            let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
            let mut rows = statement.query([]).map_err(store_error)?;
            let mut key = String::new();
            while let Some(row) = rows.next().map_err(store_error)? {
                key.clear();
                for (index, before) in [(0, ""), (1, "\0"), (2, "\0")] {
                    key.push_str(before);
                    let part = row.get_ref(index).map_err(store_error)?.as_str();
                    key.push_str(part.unwrap_or_default());
                }
                let version = row.get_ref(3).map_err(store_error)?.as_i64().ok();
                visit(
                    &key,
                    version.and_then(|version| u64::try_from(version).ok()),
                );
            }
            Ok(())
        })
    }

    pub(crate) fn subtrees(
        &self,
        level: u8,
        position: u64,
        count: u64,
    ) -> Result<Vec<Digest>, StoreError> {
        let (sql, first) = match level {
            0 => (
                "SELECT seq - 1, hash FROM events WHERE seq - 1 >= ?1 AND seq > ?1 ORDER BY seq LIMIT ?2",
                position,
            ),
            _ => (
                "SELECT position, hash FROM tree WHERE level = ?3 AND position >= ?1 ORDER BY position LIMIT ?2",
                position,
            ),
        };
        self.with_reader(|connection| {
            let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
            statement
                .raw_bind_parameter(1, integer(first))
                .map_err(store_error)?;
            statement
                .raw_bind_parameter(2, integer(count))
                .map_err(store_error)?;
            if level > 0 {
                statement
                    .raw_bind_parameter(3, level)
                    .map_err(store_error)?;
            }
            let mut rows = statement.raw_query();
            let mut hashes = Vec::new();
            while let Some(row) = rows.next().map_err(store_error)? {
                let at: i64 = row.get(0).map_err(store_error)?;
                let hash: [u8; 32] = row.get(1).map_err(store_error)?;
                if at != integer(first + hashes.len() as u64) {
                    break;
                }
                hashes.push(if level == 0 {
                    tree::leaf(&Digest(hash))
                } else {
                    Digest(hash)
                });
            }
            if hashes.len() as u64 != count {
                let missing = (position + hashes.len() as u64) << level;
                return Err(StoreError::SequenceGap { seq: missing + 1 });
            }
            Ok(hashes)
        })
    }

    pub(crate) fn prune(&self, anchor: &Anchor) -> Result<(), StoreError> {
        let connection = schema::connect(&self.database, Use::Write)?;
        prune(&connection, anchor).map_err(store_error)
    }

    pub(crate) fn view(
        &self,
        name: &str,
        schema: &Schema,
        edition: Edition,
    ) -> Result<View, StoreError> {
        let directory = self.directory.join("views");
        private_directory(&directory).map_err(StoreError::other)?;
        View::open(&view::path(&directory, name, edition), schema, edition)
    }

    pub(crate) fn publish_view(&self, name: &str, next: View) -> Result<(), StoreError> {
        let current = view::path(&self.directory.join("views"), name, Edition::Current);
        view::publish(next, &current)
    }

    pub(crate) fn query_view(
        &self,
        name: &str,
        sql: &str,
        params: &[Cell],
    ) -> Result<Rows, StoreError> {
        let path = view::path(&self.directory.join("views"), name, Edition::Current);
        view::query(&path, sql, params)
    }

    /// Copies everything committed into a new file; the end of what is in it.
    pub(crate) fn copy_to(&self, path: &Path) -> Result<Head, StoreError> {
        private_file(path).map_err(StoreError::other)?;
        self.with_reader(|connection| {
            let mut copy = Connection::open(path).map_err(store_error)?;
            // All pages in one step: one moment, and no restart when someone
            // appends. In WAL mode that keeps nobody from appending.
            Backup::new(connection, &mut copy)
                .and_then(|backup| backup.run_to_completion(i32::MAX, Duration::ZERO, None))
                .map_err(store_error)?;
            // A single file, which needs no WAL to be read.
            copy.pragma_update(None, "journal_mode", "DELETE")
                .map_err(store_error)?;
            let head = schema::head(&copy)?;
            copy.close().map_err(|(_, error)| store_error(error))?;
            Ok(head)
        })
    }

    /// Bytes of pages in use. The file itself does not shrink when rows are
    /// pruned, but new events fill the free pages before it grows.
    pub(crate) fn bytes_used(&self) -> Result<u64, StoreError> {
        let sql = "SELECT (page_count - freelist_count) * page_size \
            FROM pragma_page_count, pragma_freelist_count, pragma_page_size";
        self.with_reader(|connection| {
            let bytes: i64 = connection
                .query_row(sql, [], |row| row.get(0))
                .map_err(store_error)?;
            Ok(u64::try_from(bytes).unwrap_or(0))
        })
    }

    /// Runs `read` on an idle connection, or on a new one.
    pub(super) fn with_reader<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = idle().pop();
        let connection = match taken {
            Some(connection) => connection,
            None => schema::connect(&self.database, self.readers)?,
        };
        let result = read(&connection);
        // A connection that met an error is closed with it.
        if result.is_ok() && idle().len() < MAX_IDLE {
            idle().push(connection);
        }
        result
    }
}

/// Passes the rows from `from` on to `visit`.
pub(super) fn scan(
    connection: &Connection,
    from: u64,
    visit: &mut Visit<'_>,
) -> Result<(), StoreError> {
    let sql = schema::select("WHERE seq >= ?1 ORDER BY seq");
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let mut rows = statement.query([integer(from)]).map_err(store_error)?;
    schema::walk(&mut rows, from, visit)
}

/// What lies before the hot rows.
pub(super) fn anchor(connection: &Connection) -> Result<Option<Anchor>, StoreError> {
    let sql = "SELECT pruned_seq, pruned_hash, pruned_epoch, pruned_frontier, pruned_note \
        FROM ledger_head WHERE id = 1 AND pruned_seq > 0";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let mut rows = statement.query([]).map_err(store_error)?;
    let Some(row) = rows.next().map_err(store_error)? else {
        return Ok(None);
    };
    let head = schema::decode_head(row, 0).ok_or_else(|| schema::bad_row("ledger_head"))?;
    let note: String = row.get(4).map_err(store_error)?;
    Ok(Some(Anchor { head, note }))
}

fn prune(connection: &Connection, anchor: &Anchor) -> rusqlite::Result<()> {
    // The trigger allows deletion up to `pruned_seq`, so that comes first;
    // from then on nobody asks for the rows before it.
    write_anchor(connection, anchor)?;
    // A few at a time, so that writers need not wait. What a crash leaves
    // behind goes the next time.
    let sql = "DELETE FROM events WHERE seq <= ?1 AND seq < (SELECT min(seq) + 5000 FROM events)";
    let mut statement = connection.prepare_cached(sql)?;
    while statement.execute([integer(anchor.head.seq)])? > 0 {}
    Ok(())
}

/// Notes what lies before the hot rows, unless it is less than before.
pub(super) fn write_anchor(connection: &Connection, anchor: &Anchor) -> rusqlite::Result<usize> {
    connection.execute(
        "UPDATE ledger_head SET pruned_seq = ?1, pruned_hash = ?2, pruned_epoch = ?3, \
         pruned_frontier = ?4, pruned_note = ?5 WHERE id = 1 AND pruned_seq < ?1",
        params![
            integer(anchor.head.seq),
            anchor.head.hash.as_bytes(),
            integer(anchor.head.epoch),
            anchor.head.frontier.to_bytes(),
            anchor.note,
        ],
    )
}
