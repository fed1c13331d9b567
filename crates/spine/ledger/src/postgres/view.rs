//! Views: each projection in a schema of its own, `view_<name>`.
//!
//! The checkpoint row lives in the same schema, so it moves in the same
//! transaction as the view. A rebuild fills `view_<name>_next`, which takes
//! the place of the other in one transaction; losing a view loses nothing.

use fluffy_base::Digest;
use futures_util::TryStreamExt;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{IsolationLevel, Row};

use super::failure::Failure;
use super::integer;
use super::pool::Pool;
use super::schema::{bad_row, number};
use super::session::{Link, PATIENCE, Patience, Session, Use, pipeline, wait};
use crate::engine::Edition;
use crate::error::StoreError;
use crate::view::{Cell, MAX_ROWS, Rows, Schema, Statement, ViewDigest};

/// PostgreSQL cuts longer names off, and two views would share a schema.
const MAX_NAME: usize = 50;
const NEXT: &str = "_next";

const CHECKPOINT: &str = "CREATE TABLE view_checkpoint (
    id SMALLINT PRIMARY KEY CHECK (id = 1),
    schema_version BIGINT NOT NULL,
    applied_seq BIGINT NOT NULL
) WITH (fillfactor = 10)";

/// The writing side of one view.
#[derive(Debug)]
pub(crate) struct View {
    link: Link,
    place: Place,
    session: Option<Session>,
}

/// The schema of one edition of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place(String);

/// A name can't be that of a view in PostgreSQL.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{name}` can't name a view: at most {MAX_NAME} of a-z, 0-9, `_`, `-`, no `{NEXT}` at the end"
)]
struct BadName {
    name: String,
}

/// Another process applied the same events first.
#[derive(Debug, thiserror::Error)]
#[error("the view is no longer at event {from}: another process applies it too")]
struct Overtaken {
    from: u64,
}

impl Place {
    fn of(name: &str, edition: Edition) -> Result<Self, StoreError> {
        let known = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-'
        };
        let fits = !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(known);
        if !fits || name.ends_with(NEXT) {
            let name = name.chars().take(64).collect();
            return Err(StoreError::other(BadName { name }));
        }
        Ok(match edition {
            Edition::Current => Self(format!("view_{name}")),
            Edition::Next => Self(format!("view_{name}{NEXT}")),
        })
    }

    /// The schema as SQL takes it; the name was checked, so quotes do.
    fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }

    /// A lock for whoever creates or swaps this schema.
    fn lock(&self) -> String {
        format!(
            "SELECT pg_advisory_xact_lock(hashtextextended('fluffy {}', 0))",
            self.0
        )
    }
}

impl View {
    pub(super) fn open(
        link: &Link,
        name: &str,
        schema: &Schema,
        edition: Edition,
    ) -> Result<Self, StoreError> {
        let mut view = Self {
            link: link.clone(),
            place: Place::of(name, edition)?,
            session: None,
        };
        view.run(|place, session| {
            session.batch("BEGIN")?;
            session.batch(&place.lock())?;
            // Another shape, or none yet: what was there can be derived again.
            if edition == Edition::Next || version(session, place)? != Some(schema.version) {
                create(session, place, schema)?;
            }
            session.batch("COMMIT")
        })?;
        Ok(view)
    }

    pub(crate) fn applied(&mut self) -> Result<u64, StoreError> {
        self.run(|_, session| applied(session))
    }

    /// See [`crate::engine::View::commit`].
    pub(crate) fn commit(
        &mut self,
        statements: &[Statement],
        from: u64,
        to: u64,
    ) -> Result<(), StoreError> {
        let session = self.session()?;
        let result = apply(session, statements, from, to);
        if result.is_err() {
            // Ends the transaction with it.
            self.session = None;
        }
        Ok(result?)
    }

    pub(crate) fn digest(&mut self, schema: &Schema) -> Result<Digest, StoreError> {
        self.run(|_, session| {
            let mut digest = ViewDigest::default();
            for table in schema.tables {
                digest.table(table);
                digest_table(session, table, &mut digest)?;
            }
            Ok(digest.finish())
        })
    }

    fn session(&mut self) -> Result<&mut Session, StoreError> {
        let kept = self.session.take().filter(|session| !session.is_closed());
        let session = match kept {
            Some(session) => session,
            None => {
                let mut patience = Patience::new(PATIENCE);
                let session = self.link.connect_patiently(Use::View, &mut patience)?;
                session.batch(&format!("SET search_path = {}", self.place.quoted()))?;
                session
            }
        };
        Ok(self.session.insert(session))
    }

    /// Runs what may be run again, and once more if the session broke.
    fn run<T>(
        &mut self,
        mut work: impl FnMut(&Place, &mut Session) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let mut patience = Patience::new(PATIENCE);
        loop {
            let place = self.place.clone();
            match work(&place, self.session()?) {
                Ok(value) => return Ok(value),
                Err(failure) => {
                    self.session = None;
                    if !(failure.ends_session() && patience.pause()) {
                        return Err(failure.into());
                    }
                }
            }
        }
    }
}

/// The version of the schema that is there, if any.
fn version(session: &Session, place: &Place) -> Result<Option<u32>, Failure> {
    let table = format!("{}.view_checkpoint", place.quoted());
    let client = session.client();
    let there = wait(client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&table]))??;
    if !there.try_get::<_, bool>(0)? {
        return Ok(None);
    }
    let row = wait(client.query_opt("SELECT schema_version FROM view_checkpoint", &[]))??;
    Ok(row.and_then(|row| u32::try_from(number(&row, 0)?).ok()))
}

/// Makes an empty view, whatever was there before.
fn create(session: &Session, place: &Place, schema: &Schema) -> Result<(), Failure> {
    let quoted = place.quoted();
    session.batch(&format!(
        "DROP SCHEMA IF EXISTS {quoted} CASCADE; CREATE SCHEMA {quoted}; {CHECKPOINT}"
    ))?;
    for sql in schema.sql {
        session.batch(sql)?;
    }
    session.batch(&format!(
        "INSERT INTO view_checkpoint (id, schema_version, applied_seq) VALUES (1, {}, 0)",
        schema.version
    ))
}

fn applied(session: &mut Session) -> Result<u64, Failure> {
    let statement = session.prepare("SELECT applied_seq FROM view_checkpoint WHERE id = 1")?;
    let row = wait(session.client().query_opt(&statement, &[]))??;
    row.and_then(|row| number(&row, 0))
        .ok_or_else(|| bad_row("view_checkpoint"))
}

fn apply(
    session: &mut Session,
    statements: &[Statement],
    from: u64,
    to: u64,
) -> Result<(), Failure> {
    let mut prepared = Vec::with_capacity(statements.len());
    for statement in statements {
        prepared.push((session.prepare(&statement.sql)?, params(&statement.params)));
    }
    let sql = "UPDATE view_checkpoint SET applied_seq = $2 WHERE applied_seq = $1";
    let checkpoint = session.prepare(sql)?;
    let client = session.client();
    session.batch("BEGIN")?;
    // First, because it locks out another process that applies this view.
    let moved = wait(client.execute(&checkpoint, &[&integer(from), &integer(to)]))??;
    if moved != 1 {
        return Err(Failure::Sorted(StoreError::other(Overtaken { from })));
    }
    let sent = prepared
        .iter()
        .map(|(statement, params)| client.execute(statement, params));
    for result in wait(pipeline(sent))? {
        result?;
    }
    session.batch("COMMIT")
}

fn params(cells: &[Cell]) -> Vec<&(dyn ToSql + Sync)> {
    cells
        .iter()
        .map(|cell| cell as &(dyn ToSql + Sync))
        .collect()
}

/// Puts a finished rebuild in the place of the current view.
pub(super) fn publish(name: &str, mut next: View) -> Result<(), StoreError> {
    let current = Place::of(name, Edition::Current)?;
    let old = Place(format!("{}_old", current.0));
    let new = next.place.clone();
    let sql = format!(
        "BEGIN; {lock}; \
         DROP SCHEMA IF EXISTS {old} CASCADE; \
         CREATE SCHEMA IF NOT EXISTS {current}; \
         ALTER SCHEMA {current} RENAME TO {old}; \
         ALTER SCHEMA {new} RENAME TO {current}; \
         DROP SCHEMA {old} CASCADE; \
         COMMIT",
        lock = current.lock(),
        old = old.quoted(),
        current = current.quoted(),
        new = new.quoted(),
    );
    Ok(next.session()?.batch(&sql)?)
}

/// Runs one read-only query on the current edition.
pub(super) fn query(
    pool: &Pool,
    name: &str,
    sql: &str,
    cells: &[Cell],
) -> Result<Rows, StoreError> {
    let place = Place::of(name, Edition::Current)?;
    pool.run(|session| read(session, &place, sql, cells))
}

/// One transaction and one snapshot, so that `applied_seq` is that of the rows.
fn read(session: &mut Session, place: &Place, sql: &str, cells: &[Cell]) -> Result<Rows, Failure> {
    session.batch(&format!("SET search_path = {}", place.quoted()))?;
    let applied_sql = "SELECT applied_seq FROM view_checkpoint WHERE id = 1";
    let transaction = wait(
        session
            .client_mut()
            .build_transaction()
            .isolation_level(IsolationLevel::RepeatableRead)
            .read_only(true)
            .start(),
    )??;
    let row = wait(transaction.query_opt(applied_sql, &[]))??;
    let applied_seq = row
        .and_then(|row| number(&row, 0))
        .ok_or_else(|| bad_row("view_checkpoint"))?;
    let statement = wait(transaction.prepare(sql))??;
    let columns = statement
        .columns()
        .iter()
        .map(|column| column.name().to_owned())
        .collect();
    let portal = wait(transaction.bind(&statement, &params(cells)))??;
    // One row more than wanted tells whether there are more.
    let most = i32::try_from(MAX_ROWS + 1).unwrap_or(i32::MAX);
    let mut found = wait(transaction.query_portal(&portal, most))??;
    wait(transaction.rollback())??;
    let truncated = found.len() > MAX_ROWS;
    found.truncate(MAX_ROWS);
    Ok(Rows {
        columns,
        rows: found.iter().map(cells_of).collect::<Result<_, _>>()?,
        truncated,
        applied_seq,
    })
}

fn cells_of(row: &Row) -> Result<Vec<Cell>, Failure> {
    (0..row.len())
        .map(|index| Ok(row.try_get(index)?))
        .collect()
}

fn digest_table(
    session: &mut Session,
    table: &str,
    digest: &mut ViewDigest,
) -> Result<(), Failure> {
    let quoted = format!("\"{}\"", table.replace('"', "\"\""));
    let shape = wait(session.client().prepare(&format!("SELECT * FROM {quoted}")))??;
    // The order of the other engine: bytes, and nothing before something.
    let order: Vec<String> = shape
        .columns()
        .iter()
        .map(|column| {
            let name = column.name().replace('"', "\"\"");
            let bytes = if *column.type_() == Type::TEXT {
                " COLLATE \"C\""
            } else {
                ""
            };
            format!("\"{name}\"{bytes} NULLS FIRST")
        })
        .collect();
    let sql = format!("SELECT * FROM {quoted} ORDER BY {}", order.join(", "));
    let none: [&Cell; 0] = [];
    let rows = wait(session.client().query_raw(sql.as_str(), none))??;
    let mut rows = std::pin::pin!(rows);
    while let Some(row) = wait(rows.try_next())?? {
        digest.row();
        cells_of(&row)?.iter().for_each(|cell| digest.cell(cell));
    }
    Ok(())
}
