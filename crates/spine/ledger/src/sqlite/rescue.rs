//! Reading a damaged database, and building a new one from what is readable.
//!
//! [`condition`] says whether salvage is needed, [`Rescue`] reads around the
//! damage, [`Rebuild`] takes only events that continue the chain. Never writes
//! to a damaged file: it is evidence. `crate::salvage` puts them together.

use std::error::Error;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, params};

use super::schema::{self, Use};
use super::{integer, private_file, store, store_error, writer};
use crate::chain::{FORMAT, Genesis, Head};
use crate::engine::Anchor;
use crate::error::StoreError;
use crate::event::Event;
use crate::row::RowRef;
use crate::tree::Node;

/// The tables without which a database is no ledger.
const NEEDED: [&str; 5] = [
    "aggregates",
    "events",
    "ledger_genesis",
    "ledger_head",
    "tree",
];

/// What a look at a database file found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    /// There is no ledger in it: no file, or one without any table.
    Absent,
    /// SQLite finds it whole and it has a ledger's tables.
    Sound,
    /// It has to be salvaged; what was found first.
    Damaged(String),
}

/// Looks at a database file without changing it.
pub(crate) fn condition(path: &Path) -> Result<Condition, StoreError> {
    let length = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
    if length(path) == 0 {
        // SQLite would throw away a WAL without a database.
        return Ok(match length(&beside(path, "-wal")) {
            0 => Condition::Absent,
            _ => Condition::Damaged("the database is gone, its WAL is not".to_owned()),
        });
    }
    match schema::connect(path, Use::Read).and_then(|connection| check(&connection)) {
        Err(error) if is_damage(&error) => Ok(Condition::Damaged(root_cause(&error))),
        checked => checked,
    }
}

fn check(connection: &Connection) -> Result<Condition, StoreError> {
    // Otherwise the last one to close would copy the WAL into the database.
    connection
        .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        .map_err(store_error)?;
    let verdict: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(store_error)?;
    if verdict != "ok" {
        return Ok(Condition::Damaged(verdict.chars().take(200).collect()));
    }
    refuse_newer(connection)?;
    let mut missing = Vec::new();
    for table in NEEDED {
        if !schema::has_table(connection, table).map_err(store_error)? {
            missing.push(table);
        }
    }
    if missing.len() == NEEDED.len() {
        return Ok(Condition::Absent);
    }
    if let Some(table) = missing.first() {
        return Ok(Condition::Damaged(format!("table `{table}` is missing")));
    }
    schema::genesis(connection)?;
    schema::head(connection)?;
    Ok(Condition::Sound)
}

/// A ledger of a later release is not damaged, only not for this one.
fn refuse_newer(connection: &Connection) -> Result<(), StoreError> {
    let sql = "SELECT format FROM ledger_genesis WHERE id = 1";
    let format: Option<u32> = connection.query_row(sql, [], |row| row.get(0)).ok();
    match format {
        Some(format) if format > FORMAT => Err(StoreError::other(NewerFormat { format })),
        _ => Ok(()),
    }
}

/// The database was written by a later release.
#[derive(Debug, thiserror::Error)]
#[error("the ledger has format {format}, newer than {FORMAT}")]
struct NewerFormat {
    format: u32,
}

/// Whether an error says something about the file and not about the moment.
fn is_damage(error: &StoreError) -> bool {
    // A failed or short read, a checksum of the disk, a corrupt file system.
    const UNREADABLE: [i32; 4] = [266, 522, 8202, 8458];
    match error {
        StoreError::Corrupt(_) | StoreError::Malformed { .. } => true,
        StoreError::Other(source) => match source.downcast_ref::<rusqlite::Error>() {
            // Without a code it is a value of a type that no ledger stores.
            Some(error) => error.sqlite_error().is_none_or(|code| {
                code.code == ErrorCode::Unknown || UNREADABLE.contains(&code.extended_code)
            }),
            None => false,
        },
        _ => false,
    }
}

/// The innermost text, which is SQLite's own.
fn root_cause(error: &StoreError) -> String {
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string().chars().take(200).collect()
}

/// The path of a side file of SQLite.
pub(crate) fn beside(path: &Path, suffix: &str) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A database of which only part can be read.
#[derive(Debug)]
pub(crate) struct Rescue {
    connection: Connection,
}

/// How a walk over the rows ended.
enum Pass {
    /// At the last row, or because the visitor had enough.
    Done,
    /// At an error; the first position that was not read.
    Failed(u64),
}

impl Rescue {
    /// Opens the file; none if it is not even the outline of a database.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        fs::metadata(path)
            .ok()
            .filter(|metadata| metadata.len() > 0)?;
        let connection = schema::connect(path, Use::Inspect).ok()?;
        Some(Self { connection })
    }

    pub(crate) fn genesis(&self) -> Option<Genesis> {
        schema::genesis(&self.connection).ok()
    }

    /// Where the chain ended, by the head row.
    pub(crate) fn head(&self) -> Option<Head> {
        schema::head(&self.connection).ok()
    }

    /// What lies before the hot rows; an error if that can't be read.
    pub(crate) fn anchor(&self) -> Result<Option<Anchor>, StoreError> {
        store::anchor(&self.connection)
    }

    /// Passes on every readable event from `from` on, in order, skipping what
    /// can't be read.
    pub(crate) fn events(&self, from: u64, visit: &mut dyn FnMut(Event) -> ControlFlow<()>) {
        let mut next = from;
        while let Pass::Failed(at) = self.pass(next, visit) {
            match self.readable_after(at) {
                Some(seq) => next = seq,
                None => return,
            }
        }
    }

    fn pass(&self, from: u64, visit: &mut dyn FnMut(Event) -> ControlFlow<()>) -> Pass {
        let mut next = from;
        let walked = store::scan(&self.connection, from, &mut |row| {
            let Ok(row) = row else {
                return ControlFlow::Continue(());
            };
            // A damaged tree may give rows out of order, or twice.
            if row.seq < next {
                return ControlFlow::Continue(());
            }
            next = row.seq.saturating_add(1);
            match row.to_event() {
                Ok(event) => visit(event),
                Err(_) => ControlFlow::Continue(()),
            }
        });
        match walked {
            Ok(()) => Pass::Done,
            Err(_) => Pass::Failed(next),
        }
    }

    /// The first position after `failed` at which reading works again: gallop
    /// until it does, then halve the way back.
    fn readable_after(&self, failed: u64) -> Option<u64> {
        const FARTHEST: u64 = 1 << 40;
        let mut unreadable = failed;
        let mut step = 1;
        let mut readable = loop {
            let at = failed.saturating_add(step);
            match self.probe(at) {
                Ok(_) => break at,
                Err(_) if step < FARTHEST => unreadable = at,
                Err(_) => return None,
            }
            step *= 2;
        };
        while readable - unreadable > 1 {
            let middle = unreadable + (readable - unreadable) / 2;
            match self.probe(middle) {
                Ok(_) => readable = middle,
                Err(_) => unreadable = middle,
            }
        }
        // Nothing there means that the damage reached to the end.
        self.probe(readable).ok().flatten()
    }

    /// The position of the first row from `seq` on, read with all its columns.
    fn probe(&self, seq: u64) -> Result<Option<u64>, StoreError> {
        let mut found = None;
        store::scan(&self.connection, seq, &mut |row| {
            found = Some(row.map_or_else(|fault| fault.seq, |row| row.seq).max(seq));
            ControlFlow::Break(())
        })?;
        Ok(found)
    }
}

/// A new database that grows by events which continue its chain.
#[derive(Debug)]
pub(crate) struct Rebuild {
    connection: Connection,
    head: Head,
    insert: String,
    buffer: String,
}

impl Rebuild {
    /// A new file that starts at the genesis, or at the anchor of `base`.
    pub(crate) fn create(
        path: &Path,
        genesis: &Genesis,
        base: Option<(&Rescue, &Anchor)>,
    ) -> Result<Self, StoreError> {
        private_file(path).map_err(StoreError::other)?;
        let mut connection = schema::connect(path, Use::Write)?;
        schema::create(&mut connection, genesis)?;
        connection
            .execute_batch("BEGIN IMMEDIATE")
            .map_err(store_error)?;
        let head = match base {
            Some((rescue, anchor)) => {
                copy_bookkeeping(&rescue.connection, &connection, anchor).map_err(store_error)?;
                anchor.head.clone()
            }
            None => Head::empty(genesis),
        };
        Ok(Self {
            connection,
            head,
            insert: writer::insert_sql(),
            buffer: String::new(),
        })
    }

    /// The end of what was taken so far.
    pub(crate) fn seq(&self) -> u64 {
        self.head.seq
    }

    /// Takes the event if it is the next of the chain, and says whether.
    pub(crate) fn accept(&mut self, event: &Event) -> Result<bool, StoreError> {
        let row = RowRef::of(event);
        let fits = row.seq == self.head.seq + 1
            && row.prev_hash == self.head.hash
            && row.hash == row.expected_hash(&self.head.hash, &mut self.buffer);
        if !fits {
            return Ok(false);
        }
        let mut nodes = Vec::new();
        self.head.advance(&row, |node| nodes.push(node));
        self.store(event, &nodes).map_err(store_error)?;
        Ok(true)
    }

    fn store(&self, event: &Event, nodes: &[Node]) -> rusqlite::Result<()> {
        writer::insert_events(&self.connection, &self.insert, std::iter::once(event))?;
        writer::insert_nodes(&self.connection, nodes)?;
        let sql = "INSERT INTO aggregates (domain, aggregate_type, aggregate_id, version) \
            VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET version = excluded.version";
        self.connection.prepare_cached(sql)?.execute(params![
            event.domain.as_str(),
            event.aggregate.kind,
            event.aggregate.id,
            integer(event.aggregate_version),
        ])?;
        Ok(())
    }

    /// Stores it all; before that the file is an empty ledger.
    pub(crate) fn finish(self) -> Result<(), StoreError> {
        let finish = || {
            writer::write_head(&self.connection, &self.head)?;
            self.connection.execute_batch("COMMIT")
        };
        finish().map_err(store_error)?;
        self.connection
            .close()
            .map_err(|(_, error)| store_error(error))
    }
}

/// Takes over what no hot row can tell: the anchor, the subtrees before it,
/// and the versions of aggregates at it.
fn copy_bookkeeping(from: &Connection, to: &Connection, anchor: &Anchor) -> rusqlite::Result<()> {
    store::write_anchor(to, anchor)?;
    copy_subtrees(from, to, anchor.head.seq)?;
    copy_versions(from, to)
}

fn copy_subtrees(from: &Connection, to: &Connection, size: u64) -> rusqlite::Result<()> {
    let mut statement = from.prepare("SELECT level, position, hash FROM tree")?;
    let mut rows = statement.query([])?;
    let mut insert = to.prepare("INSERT INTO tree (level, position, hash) VALUES (?1, ?2, ?3)")?;
    while let Some(row) = rows.next()? {
        let (level, position): (u8, i64) = (row.get(0)?, row.get(1)?);
        let next = u64::try_from(position)
            .ok()
            .and_then(|at| at.checked_add(1));
        let end = next.and_then(|next| next.checked_mul(1u64.checked_shl(level.into())?));
        if end.is_some_and(|end| end <= size) {
            insert.execute(params![level, position, row.get::<_, Vec<u8>>(2)?])?;
        }
    }
    Ok(())
}

/// An aggregate's version at the anchor is one less than its first hot one,
/// which the index tells even where rows are gone. Where nothing tells it, the
/// newest version is taken: too high perhaps, but no number is given twice.
fn copy_versions(from: &Connection, to: &Connection) -> rusqlite::Result<()> {
    let mut statement =
        from.prepare("SELECT aggregate_id, aggregate_type, domain, version FROM aggregates")?;
    let mut rows = statement.query([])?;
    let mut first_hot = from.prepare(
        "SELECT min(aggregate_version) FROM events INDEXED BY events_by_aggregate \
         WHERE aggregate_id = ?1 AND aggregate_type = ?2 AND domain = ?3",
    )?;
    let mut insert = to.prepare(
        "INSERT INTO aggregates (aggregate_id, aggregate_type, domain, version) \
         VALUES (?1, ?2, ?3, ?4)",
    )?;
    while let Some(row) = rows.next()? {
        let (id, kind): (String, String) = (row.get(0)?, row.get(1)?);
        let (domain, newest): (String, i64) = (row.get(2)?, row.get(3)?);
        let first: Option<i64> = first_hot
            .query_row([&id, &kind, &domain], |row| row.get(0))
            .unwrap_or_default();
        let version = first.map_or(newest, |first| first.saturating_sub(1));
        if version > 0 {
            insert.execute(params![id, kind, domain, version])?;
        }
    }
    Ok(())
}
