//! Reading the PostgreSQL engine, from any thread, beside all writers.
//!
//! No read keeps a transaction open for long: the head row is rewritten with
//! every commit, and an old snapshot would keep all its dead versions alive.
//! Nothing here appends.

use std::ops::ControlFlow;
use std::pin::pin;

use fluffy_base::Digest;
use futures_util::TryStreamExt;
use tokio::sync::watch;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::address::PostgresAddress;
use super::failure::Failure;
use super::integer;
use super::partition;
use super::pool::Pool;
use super::schema::{self, Foundation};
use super::session::{Link, PATIENCE, Patience, Session, Use, wait};
use super::signal::Signal;
use super::view::{self, View};
use super::writer::Writer;
use crate::chain::{AggregateKey, Genesis, Head};
use crate::engine::{Anchor, Edition, RowFault, Visit};
use crate::error::StoreError;
use crate::event::Event;
use crate::tree;
use crate::view::{Cell, Rows, Schema};

/// Rows asked for at first; a reader often wants a few only.
const FIRST_PAGE: i64 = 512;
/// Rows asked for when more are wanted.
const NEXT_PAGE: i64 = 4_096;

/// A ledger's database, opened.
#[derive(Debug)]
pub(crate) struct Store {
    link: Link,
    foundation: Foundation,
    readers: Pool,
    views: Pool,
    signal: Signal,
}

impl Store {
    /// Opens the ledger in the database, creating it from `genesis` if new.
    pub(crate) fn open(address: &PostgresAddress, genesis: &Genesis) -> Result<Self, StoreError> {
        let link = Link::new(address)?;
        let wanted = Foundation {
            genesis: *genesis,
            partition_events: address.partition_events(),
        };
        let mut session = link.connect_patiently(Use::Write, &mut Patience::new(PATIENCE))?;
        let foundation = schema::create(&mut session, &wanted)?;
        let row = wait(session.client().query_one("SHOW fsync", &[]))?.map_err(Failure::from)?;
        if row.try_get::<_, &str>(0).is_ok_and(|fsync| fsync == "off") {
            tracing::warn!("PostgreSQL runs with `fsync = off`: a power cut loses events");
        }
        let readers = Pool::new(&link, Use::Read);
        if address.is_pooled() {
            readers.run(|session| schema::is_same(session, &foundation))?;
        }
        Ok(Self {
            readers,
            views: Pool::new(&link, Use::View),
            signal: Signal::start(&link),
            link,
            foundation,
        })
    }

    pub(crate) fn genesis(&self) -> Genesis {
        self.foundation.genesis
    }

    pub(crate) fn writer(&self) -> Result<Writer, StoreError> {
        let announce = self.signal.announce();
        Writer::open(&self.link, self.foundation.partition_events, announce)
    }

    /// Ticks with the head as any process moves it.
    pub(crate) fn heard(&self) -> watch::Receiver<u64> {
        self.signal.heard()
    }

    pub(crate) fn head(&self) -> Result<Head, StoreError> {
        let sql = "SELECT seq, hash, epoch, frontier FROM ledger_head WHERE id = 1";
        self.readers.run(|session| {
            let statement = session.prepare(sql)?;
            let row = wait(session.client().query_opt(&statement, &[]))??;
            row.and_then(|row| schema::decode_head(&row))
                .ok_or_else(|| schema::bad_row("ledger_head"))
        })
    }

    pub(crate) fn anchor(&self) -> Result<Option<Anchor>, StoreError> {
        self.readers.run(anchor)
    }

    pub(crate) fn prune(&self, anchor: &Anchor) -> Result<(), StoreError> {
        let session = self
            .link
            .connect_patiently(Use::Prune, &mut Patience::new(PATIENCE))?;
        let span = self.foundation.partition_events;
        Ok(partition::prune(&session, span, anchor)?)
    }

    /// See [`crate::engine::Engine::scan`]. Page by page: what is appended
    /// while it runs is left out, so it is one moment all the same.
    pub(crate) fn scan(&self, from: u64, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        let mut page = Page::new(from);
        loop {
            let before = (page.from, page.seen);
            let turn = match self.readers.run(|session| page.read(session, visit)) {
                // A slow visitor used up the statement's time; it got further.
                Err(StoreError::Busy(_)) if (page.from, page.seen) != before => continue,
                turn => turn?,
            };
            match turn {
                Turn::Over => return Ok(()),
                Turn::More if page.limit == FIRST_PAGE => {
                    page.last = self.readers.run(last_seq)?;
                    page.limit = NEXT_PAGE;
                }
                Turn::More => {}
                Turn::Hole => {
                    let start = self.anchor()?.map_or(0, |anchor| integer(anchor.head.seq));
                    if start > page.from {
                        return Err(StoreError::other(PrunedMeanwhile));
                    }
                    page.hole_after = Some(page.from);
                }
            }
        }
    }

    pub(crate) fn read_aggregate(
        &self,
        key: &AggregateKey,
        after_version: u64,
        limit: usize,
    ) -> Result<Vec<Event>, StoreError> {
        let (domain, kind, id) = key.parts();
        let sql = schema::select(
            "WHERE aggregate_id = $1 AND aggregate_type = $2 AND domain = $3 \
             AND aggregate_version > $4 ORDER BY aggregate_version LIMIT $5",
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let after = integer(after_version);
        let rows = self.readers.run(|session| {
            let statement = session.prepare(&sql)?;
            let params: [&(dyn ToSql + Sync); 5] = [&id, &kind, &domain, &after, &limit];
            Ok(wait(session.client().query(&statement, &params))??)
        })?;
        rows.iter().map(event).collect()
    }

    pub(crate) fn version(&self, key: &AggregateKey) -> Result<u64, StoreError> {
        let (domain, kind, id) = key.parts();
        let sql = "SELECT version FROM aggregates \
            WHERE aggregate_id = $1 AND aggregate_type = $2 AND domain = $3";
        self.readers.run(|session| {
            let statement = session.prepare(sql)?;
            let row = wait(
                session
                    .client()
                    .query_opt(&statement, &[&id, &kind, &domain]),
            )??;
            row.map_or(Some(0), |row| schema::number(&row, 0))
                .ok_or_else(|| schema::bad_row("aggregates"))
        })
    }

    /// Passes every stored version to `visit`, with domain, kind and id as
    /// one text with NULs between; none if it is no number. Page by page, so
    /// that one read late may be newer than one read early.
    pub(crate) fn versions(
        &self,
        visit: &mut dyn FnMut(&str, Option<u64>),
    ) -> Result<(), StoreError> {
        let sql = "SELECT domain, aggregate_type, aggregate_id, version FROM aggregates \
            WHERE (aggregate_id, aggregate_type, domain) > ($1, $2, $3) \
            ORDER BY aggregate_id, aggregate_type, domain LIMIT $4";
        let (mut id, mut kind, mut domain) = (String::new(), String::new(), String::new());
        loop {
            let rows = self.readers.run(|session| {
                let statement = session.prepare(sql)?;
                let params: [&(dyn ToSql + Sync); 4] = [&id, &kind, &domain, &NEXT_PAGE];
                Ok(wait(session.client().query(&statement, &params))??)
            })?;
            for row in &rows {
                let part = |index| {
                    row.try_get(index)
                        .map_err(|_| schema::bad_row("aggregates"))
                };
                (domain, kind, id) = (part(0)?, part(1)?, part(2)?);
                visit(&format!("{domain}\0{kind}\0{id}"), schema::number(row, 3));
            }
            if rows.is_empty() {
                return Ok(());
            }
        }
    }

    pub(crate) fn subtrees(
        &self,
        level: u8,
        position: u64,
        count: u64,
    ) -> Result<Vec<Digest>, StoreError> {
        let sql = match level {
            0 => {
                "SELECT seq - 1, hash FROM events WHERE seq > $1 AND $3 = 0::smallint \
                  ORDER BY seq LIMIT $2"
            }
            _ => {
                "SELECT position, hash FROM tree WHERE level = $3 AND position >= $1 \
                  ORDER BY position LIMIT $2"
            }
        };
        let params = (integer(position), integer(count), i16::from(level));
        let rows = self.readers.run(|session| {
            let statement = session.prepare(sql)?;
            let params: [&(dyn ToSql + Sync); 3] = [&params.0, &params.1, &params.2];
            Ok(wait(session.client().query(&statement, &params))??)
        })?;
        let mut hashes = Vec::new();
        for row in &rows {
            let wanted = position + hashes.len() as u64;
            let hash = schema::digest(row, 1).filter(|_| schema::number(row, 0) == Some(wanted));
            let Some(hash) = hash else { break };
            hashes.push(if level == 0 { tree::leaf(&hash) } else { hash });
        }
        if hashes.len() as u64 != count {
            let missing = (position + hashes.len() as u64) << level;
            return Err(StoreError::SequenceGap { seq: missing + 1 });
        }
        Ok(hashes)
    }

    pub(crate) fn view(
        &self,
        name: &str,
        schema: &Schema,
        edition: Edition,
    ) -> Result<View, StoreError> {
        View::open(&self.link, name, schema, edition)
    }

    pub(crate) fn publish_view(&self, name: &str, next: View) -> Result<(), StoreError> {
        view::publish(name, next)
    }

    pub(crate) fn query_view(
        &self,
        name: &str,
        sql: &str,
        params: &[Cell],
    ) -> Result<Rows, StoreError> {
        view::query(&self.views, name, sql, params)
    }

    /// Bytes used by the events and everything kept beside them.
    pub(crate) fn bytes_used(&self) -> Result<u64, StoreError> {
        let sql = "SELECT COALESCE(sum(pg_total_relation_size(c.oid)), 0)::bigint \
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
            WHERE n.nspname = 'ledger' AND c.relkind = 'r'";
        self.readers.run(|session| {
            let row = wait(session.client().query_one(sql, &[]))??;
            schema::number(&row, 0).ok_or_else(|| schema::bad_row("pg_class"))
        })
    }
}

/// Events were dropped while they were read.
#[derive(Debug, thiserror::Error)]
#[error("old events were dropped while they were read; read again")]
struct PrunedMeanwhile;

/// How a scan goes on.
enum Turn {
    /// There may be more rows.
    More,
    /// All rows were passed on, or the visitor has seen enough.
    Over,
    /// The page does not follow the one before: missing, or just dropped?
    Hole,
}

/// Where a scan stands.
struct Page {
    /// The first position wanted.
    from: i64,
    /// Rows of that very position that were passed on already: there is one,
    /// unless someone has forged another.
    seen: usize,
    /// Nothing after this is part of the scan.
    last: i64,
    limit: i64,
    /// The position of the next row, should it not be readable.
    expected: u64,
    /// The position after which rows are known to be missing.
    hole_after: Option<i64>,
}

impl Page {
    fn new(from: u64) -> Self {
        Self {
            from: integer(from),
            seen: 0,
            last: i64::MAX,
            limit: FIRST_PAGE,
            expected: from,
            hole_after: None,
        }
    }

    /// Passes one page of rows on. May be called again after a failure.
    fn read(&mut self, session: &mut Session, visit: &mut Visit<'_>) -> Result<Turn, Failure> {
        let sql = schema::select("WHERE seq >= $1 AND seq <= $2 ORDER BY seq LIMIT $3");
        let statement = session.prepare(&sql)?;
        let params = [self.from, self.last, self.limit];
        let stream = wait(session.client().query_raw(&statement, params))??;
        let mut stream = pin!(stream);
        let (mut rows, mut skip) = (0, self.seen);
        while let Some(row) = wait(stream.try_next())?? {
            rows += 1;
            let seq = row.try_get::<_, i64>(0);
            if skip > 0 && seq.as_ref().is_ok_and(|seq| *seq == self.from) {
                skip -= 1;
                continue;
            }
            let begins = rows <= 2 && self.seen > 0 && self.hole_after != Some(self.from);
            if begins && seq.is_ok_and(|seq| seq > self.from.saturating_add(1)) {
                return Ok(Turn::Hole);
            }
            if self.pass_on(&row, visit).is_break() {
                return Ok(Turn::Over);
            }
        }
        Ok(if rows < self.limit {
            Turn::Over
        } else {
            Turn::More
        })
    }

    fn pass_on(&mut self, row: &Row, visit: &mut Visit<'_>) -> ControlFlow<()> {
        match row.try_get::<_, i64>(0) {
            Ok(seq) if seq != self.from => (self.from, self.seen) = (seq, 1),
            _ => self.seen += 1,
        }
        let decoded = schema::decode(row, self.expected);
        let seq = match &decoded {
            Ok(row) => row.seq,
            Err(fault) => fault.seq,
        };
        self.expected = seq.saturating_add(1);
        visit(decoded)
    }
}

fn last_seq(session: &mut Session) -> Result<i64, Failure> {
    let statement = session.prepare("SELECT COALESCE(max(seq), 0) FROM events")?;
    let row = wait(session.client().query_one(&statement, &[]))??;
    Ok(row.try_get(0)?)
}

fn anchor(session: &mut Session) -> Result<Option<Anchor>, Failure> {
    let sql = "SELECT seq, hash, epoch, frontier, note FROM ledger_anchor WHERE id = 1";
    let statement = session.prepare(sql)?;
    let Some(row) = wait(session.client().query_opt(&statement, &[]))?? else {
        return Ok(None);
    };
    let head = schema::decode_head(&row).ok_or_else(|| schema::bad_row("ledger_anchor"))?;
    let note = row.try_get(4)?;
    Ok(Some(Anchor { head, note }))
}

fn event(row: &Row) -> Result<Event, StoreError> {
    let malformed = |seq, column| StoreError::Malformed { seq, column };
    let row = schema::decode(row, 0).map_err(|RowFault { seq, column }| malformed(seq, column))?;
    row.to_event()
        .map_err(|fault| malformed(row.seq, fault.column))
}
