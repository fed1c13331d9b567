//! How far a view is behind, at a thousand durable events a second.
//!
//! Measured by those who append: from the moment their event is acknowledged
//! to the moment it is in the view. The rate that was kept up is a figure of
//! its own, because a lag at any other rate would mean nothing.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fluffy_ledger::{
    ApplyError, Durability, Event, Ledger, Projection, Projector, Schema, Upcasters, ViewTx,
};

use super::load::{Kind, crowd};
use super::server::Server;
use super::sqlite;
use crate::figure::{Bar, Figure, Samples, Show};

const WRITERS: u64 = 16;
/// Each writer's pace: all of them make a thousand events a second.
const PACE: Duration = Duration::from_millis(16);
const EVENTS_PER_WRITER: u64 = 625;
/// Nothing is this late unless it is broken.
const LIMIT: Duration = Duration::from_secs(30);
const KIND: Kind = Kind {
    durability: Durability::Security,
    payload: 200,
};

/// The lag on both engines.
pub(super) fn run(server: &Server) -> Result<Vec<Figure>> {
    let directory = tempfile::tempdir()?;
    let mut figures = measure("SQLite", &sqlite::open(directory.path())?)?;
    figures.extend(measure("PostgreSQL", &server.open()?.ledger)?);
    Ok(figures)
}

fn measure(engine: &str, ledger: &Ledger) -> Result<Vec<Figure>> {
    let projector = Projector::start(ledger, vec![Arc::new(Tally)], Upcasters::default())?;
    let lags = Mutex::new(Vec::new());
    let done = crowd(WRITERS, |writer| {
        // Spread evenly, as independent callers would be.
        let mut next = Instant::now() + PACE * u32::try_from(writer)? / u32::try_from(WRITERS)?;
        let mut mine = Vec::new();
        for event in 0..EVENTS_PER_WRITER {
            thread::sleep(next.saturating_duration_since(Instant::now()));
            next += PACE;
            let number = writer * 1_000_000 + event;
            let seq = ledger.append_blocking(KIND.draft(number))?.last_seq;
            let acknowledged = Instant::now();
            projector.wait_for_blocking(NAME, seq, LIMIT)?;
            mine.push(acknowledged.elapsed().as_secs_f64());
        }
        lags.lock().ok().context("a writer panicked")?.extend(mine);
        Ok(EVENTS_PER_WRITER)
    })?;
    projector.stop();
    let lags = lags.into_inner().ok().context("a writer panicked")?;
    let rate = vec![done.seconds_per_event()];
    Ok(vec![
        Figure {
            what: format!("projection lag, {engine}, 1000 events/s"),
            ours: Samples::new(lags, Show::Time),
            reference: None,
            bar: Bar::P99Under(0.5),
        },
        Figure {
            what: format!("rate kept up meanwhile, {engine}"),
            ours: Samples::new(rate, Show::Rate),
            reference: None,
            bar: Bar::PerSecond(950.0),
        },
    ])
}

const NAME: &str = "tally";

const SCHEMA: Schema = Schema {
    version: 1,
    sql: &[
        "CREATE TABLE tally (id TEXT NOT NULL PRIMARY KEY, events BIGINT NOT NULL, \
        last_seq BIGINT NOT NULL)",
    ],
    tables: &["tally"],
};

/// Counts the events of each aggregate.
#[derive(Debug)]
struct Tally;

impl Projection for Tally {
    fn name(&self) -> &str {
        NAME
    }

    fn schema(&self) -> &Schema {
        &SCHEMA
    }

    fn apply(&self, event: &Event, tx: &mut ViewTx) -> Result<(), ApplyError> {
        tx.execute(
            "INSERT INTO tally (id, events, last_seq) VALUES ($1, 1, $2) ON CONFLICT (id) \
             DO UPDATE SET events = tally.events + 1, last_seq = excluded.last_seq",
            [event.aggregate.id.as_str().into(), event.seq.into()],
        );
        Ok(())
    }
}
