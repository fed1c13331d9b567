//! Views: each projection in a database file of its own.
//!
//! The checkpoint row lives in the same file, so it moves in the same
//! transaction as the view. Losing such a file loses nothing: it is rebuilt.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fluffy_base::Digest;
use rusqlite::backup::Backup;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{
    CachedStatement, Connection, OpenFlags, OptionalExtension, ToSql, TransactionBehavior, params,
};

use super::{integer, private_file, store_error, use_wal};
use crate::engine::Edition;
use crate::error::StoreError;
use crate::view::{Cell, MAX_ROWS, Rows, Schema, Statement, ViewDigest};

const CHECKPOINT: &str = "CREATE TABLE view_checkpoint (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    schema_version INTEGER NOT NULL,
    applied_seq INTEGER NOT NULL
) STRICT";

/// The writing side of one view.
#[derive(Debug)]
pub(crate) struct View {
    path: PathBuf,
    connection: Connection,
}

/// The file of a view.
pub(super) fn path(directory: &Path, name: &str, edition: Edition) -> PathBuf {
    match edition {
        Edition::Current => directory.join(format!("{name}.db")),
        Edition::Next => directory.join(format!("{name}.next.db")),
    }
}

impl View {
    pub(super) fn open(path: &Path, schema: &Schema, edition: Edition) -> Result<Self, StoreError> {
        if edition == Edition::Next {
            return Self::fresh(path, schema);
        }
        let opened = Self::connect(path).and_then(|mut view| {
            view.adopt(schema).map_err(store_error)?;
            Ok(view)
        });
        match opened {
            // No page of it can be trusted, and all can be derived again.
            Err(StoreError::Corrupt(_)) => Self::fresh(path, schema),
            opened => opened,
        }
    }

    /// Empties a view of another shape, or one that has none yet.
    fn adopt(&mut self, schema: &Schema) -> rusqlite::Result<()> {
        // Under the lock, because other processes may open it just now.
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        if schema_version(&transaction)? == Some(schema.version) {
            return Ok(());
        }
        let sql = "SELECT type, name FROM sqlite_schema \
            WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
        let objects: Vec<(String, String)> = transaction
            .prepare(sql)?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        for (kind, name) in objects {
            transaction.execute_batch(&format!("DROP {kind} \"{}\"", name.replace('"', "\"\"")))?;
        }
        create(&transaction, schema)?;
        transaction.commit()
    }

    /// An empty view at `path`, whatever was there before.
    fn fresh(path: &Path, schema: &Schema) -> Result<Self, StoreError> {
        remove(path).map_err(StoreError::other)?;
        let mut view = Self::connect(path)?;
        view.adopt(schema).map_err(store_error)?;
        Ok(view)
    }

    fn connect(path: &Path) -> Result<Self, StoreError> {
        private_file(path).map_err(StoreError::other)?;
        let connection = Connection::open(path).map_err(store_error)?;
        let set_up = || {
            connection.busy_timeout(Duration::from_secs(10))?;
            connection.set_prepared_statement_cache_capacity(128);
            connection.pragma_update(None, "trusted_schema", false)?;
            use_wal(&connection)?;
            // A view that loses its last transactions in a power cut is only
            // behind: checkpoint and rows go together.
            connection.pragma_update(None, "synchronous", "NORMAL")
        };
        set_up().map_err(store_error)?;
        Ok(Self {
            path: path.to_owned(),
            connection,
        })
    }

    pub(crate) fn applied(&mut self) -> Result<u64, StoreError> {
        applied(&self.connection)
    }

    /// See [`crate::engine::View::commit`].
    pub(crate) fn commit(
        &mut self,
        statements: &[Statement],
        from: u64,
        to: u64,
    ) -> Result<(), StoreError> {
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(store_error)?;
        for statement in statements {
            let mut prepared = transaction
                .prepare_cached(&statement.sql)
                .map_err(store_error)?;
            bind(&mut prepared, &statement.params).map_err(store_error)?;
            // A statement may return rows it was not asked for: drain them.
            let mut rows = prepared.raw_query();
            while rows.next().map_err(store_error)?.is_some() {}
        }
        let sql = "UPDATE view_checkpoint SET applied_seq = ?2 WHERE applied_seq = ?1";
        let moved = transaction
            .execute(sql, params![integer(from), integer(to)])
            .map_err(store_error)?;
        if moved != 1 {
            return Err(StoreError::other(Overtaken { from }));
        }
        transaction.commit().map_err(store_error)
    }

    pub(crate) fn digest(&mut self, schema: &Schema) -> Result<Digest, StoreError> {
        let mut digest = ViewDigest::default();
        for table in schema.tables {
            digest.table(table);
            digest_table(&self.connection, table, &mut digest).map_err(store_error)?;
        }
        Ok(digest.finish())
    }
}

/// The version of the schema that is there, if any.
fn schema_version(connection: &Connection) -> rusqlite::Result<Option<u32>> {
    let tables = "SELECT count(*) FROM sqlite_schema WHERE name = 'view_checkpoint'";
    if connection.query_row(tables, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(None);
    }
    connection
        .query_row("SELECT schema_version FROM view_checkpoint", [], |row| {
            row.get(0)
        })
        .optional()
}

fn create(connection: &Connection, schema: &Schema) -> rusqlite::Result<()> {
    connection.execute_batch(CHECKPOINT)?;
    for sql in schema.sql {
        connection.execute_batch(sql)?;
    }
    connection.execute(
        "INSERT INTO view_checkpoint (id, schema_version, applied_seq) VALUES (1, ?1, 0)",
        [schema.version],
    )?;
    Ok(())
}

/// Another process applied the same events first.
#[derive(Debug, thiserror::Error)]
#[error("the view is no longer at event {from}: another process applies it too")]
struct Overtaken {
    from: u64,
}

/// Puts a finished rebuild in the place of the current view.
///
/// Copied page by page in one transaction of the destination, not renamed:
/// readers of any process keep their moment, and no side file goes stale.
pub(super) fn publish(next: View, current: &Path) -> Result<(), StoreError> {
    let mut destination = View::connect(current)?.connection;
    Backup::new(&next.connection, &mut destination)
        .and_then(|backup| backup.run_to_completion(i32::MAX, Duration::ZERO, None))
        .map_err(store_error)?;
    let View { path, connection } = next;
    connection
        .close()
        .map_err(|(_, error)| store_error(error))?;
    remove(&path).map_err(StoreError::other)
}

/// Runs one read-only query.
pub(super) fn query(path: &Path, sql: &str, params: &[Cell]) -> Result<Rows, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(store_error)?;
    connection
        .busy_timeout(Duration::from_secs(10))
        .map_err(store_error)?;
    connection
        .pragma_update(None, "query_only", true)
        .map_err(store_error)?;
    // One transaction, so that `applied_seq` is that of the rows.
    let transaction = connection.transaction().map_err(store_error)?;
    let applied_seq = applied(&transaction)?;
    let mut rows = read(&transaction, sql, params).map_err(store_error)?;
    rows.applied_seq = applied_seq;
    Ok(rows)
}

fn read(connection: &Connection, sql: &str, params: &[Cell]) -> rusqlite::Result<Rows> {
    let mut statement = connection.prepare_cached(sql)?;
    let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
    bind(&mut statement, params)?;
    let mut answer = Rows {
        columns,
        ..Rows::default()
    };
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        if answer.rows.len() == MAX_ROWS {
            answer.truncated = true;
            break;
        }
        let cells = (0..answer.columns.len()).map(|index| row.get_ref(index).map(cell));
        answer.rows.push(cells.collect::<rusqlite::Result<_>>()?);
    }
    Ok(answer)
}

fn applied(connection: &Connection) -> Result<u64, StoreError> {
    let sql = "SELECT applied_seq FROM view_checkpoint WHERE id = 1";
    let seq: i64 = connection
        .query_row(sql, [], |row| row.get(0))
        .map_err(store_error)?;
    u64::try_from(seq).map_err(|_| super::schema::bad_row("view_checkpoint"))
}

fn digest_table(
    connection: &Connection,
    table: &str,
    digest: &mut ViewDigest,
) -> rusqlite::Result<()> {
    let quoted = format!("\"{}\"", table.replace('"', "\"\""));
    let width = connection
        .prepare_cached(&format!("SELECT * FROM {quoted}"))?
        .column_count();
    let order: Vec<String> = (1..=width).map(|column| column.to_string()).collect();
    let sql = format!("SELECT * FROM {quoted} ORDER BY {}", order.join(", "));
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        digest.row();
        for index in 0..width {
            digest.cell(&cell(row.get_ref(index)?));
        }
    }
    Ok(())
}

/// Binds by the number in `$1`: SQLite counts names in order of appearance.
fn bind(statement: &mut CachedStatement<'_>, params: &[Cell]) -> rusqlite::Result<()> {
    for index in 1..=statement.parameter_count() {
        let number = statement
            .parameter_name(index)
            .and_then(|name| name.get(1..)?.parse::<usize>().ok())
            .unwrap_or(index);
        let param = number.checked_sub(1).and_then(|at| params.get(at));
        let param = param.ok_or(rusqlite::Error::InvalidParameterCount(params.len(), number))?;
        statement.raw_bind_parameter(index, param)?;
    }
    Ok(())
}

impl ToSql for Cell {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Null => ToSqlOutput::Owned(Value::Null),
            Self::Integer(value) => ToSqlOutput::Owned(Value::Integer(*value)),
            Self::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Self::Blob(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        })
    }
}

fn cell(value: ValueRef<'_>) -> Cell {
    match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(value) => Cell::Integer(value),
        // Views hold no fractions; one that a query computes is shown as text.
        ValueRef::Real(value) => Cell::Text(value.to_string()),
        ValueRef::Text(bytes) => Cell::Text(String::from_utf8_lossy(bytes).into_owned()),
        ValueRef::Blob(bytes) => Cell::Blob(bytes.to_vec()),
    }
}

/// Removes a database that nobody else opens, with its side files.
fn remove(path: &Path) -> io::Result<()> {
    for suffix in ["-wal", "-shm", "-journal", ""] {
        let mut file = path.as_os_str().to_owned();
        file.push(suffix);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
