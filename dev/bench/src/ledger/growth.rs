//! What an append costs in a large ledger, beside one in a small ledger.
//!
//! Events come one at a time and without a sync, whose time would hide all
//! else. New aggregates fall on random places of the index, which real ids,
//! being ordered by time, do not: this is the worst that can happen to it.

use std::time::Instant;

use anyhow::Result;
use fluffy_ledger::{Batch, Draft, Durability, Ledger};
use fluffy_test_kit::campaign;

use super::load::Kind;
use super::sqlite;
use crate::figure::{Bar, Figure, Samples, Show};

const ROUNDS: u32 = 9;
/// One WAL checkpoint falls into each round.
const APPENDS: u32 = 2_000;
const SMALLEST: u64 = 1_000;
const EVENTS_PER_AGGREGATE: u64 = 50;
const KIND: Kind = Kind {
    durability: Durability::Operational,
    payload: 200,
};

/// Sizes up to 10⁶, and 10⁷ in a full campaign.
pub(super) fn run() -> Result<Vec<Figure>> {
    let directory = tempfile::tempdir()?;
    let mut large = Growing::new(sqlite::open(directory.path())?);
    let largest = campaign(1_000_000, 10_000_000);
    let sizes = std::iter::successors(Some(10 * SMALLEST), |size| Some(size * 10));
    let sizes = sizes.take_while(|size| *size <= largest);
    sizes.map(|size| at(&mut large, size)).collect()
}

fn at(large: &mut Growing, size: u64) -> Result<Figure> {
    let directory = tempfile::tempdir()?;
    let mut small = Growing::new(sqlite::open(directory.path())?);
    small.grow(SMALLEST)?;
    large.grow(size)?;
    // What growing left to write must not be in the way of what is measured.
    rustix::fs::sync();
    let (mut ours, mut reference) = (Vec::new(), Vec::new());
    // The first round of each warms up and is not counted.
    for round in 0..=ROUNDS {
        let times = (large.appends()?, small.appends()?);
        if round > 0 {
            ours.push(times.0);
            reference.push(times.1);
        }
    }
    let reference = Samples::new(reference, Show::Time);
    Ok(Figure {
        what: format!("append at {size} events, SQLite"),
        ours: Samples::new(ours, Show::Time),
        reference: Some((format!("at {SMALLEST} events"), reference)),
        bar: Bar::TimesReference(0.67),
    })
}

/// A ledger that gets larger and larger.
struct Growing {
    ledger: Ledger,
    events: u64,
}

impl Growing {
    fn new(ledger: Ledger) -> Self {
        Self { ledger, events: 0 }
    }

    fn next(&mut self) -> Draft {
        let aggregate = (self.events / EVENTS_PER_AGGREGATE).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let draft = KIND.draft_of(self.events, format!("{aggregate:016x}"));
        self.events += 1;
        draft
    }

    /// Appends in large batches up to this size.
    fn grow(&mut self, size: u64) -> Result<()> {
        while self.events < size {
            let batch = (size - self.events).min(1_000);
            let drafts = (0..batch).map(|_| self.next()).collect();
            self.ledger.append_blocking(Batch::new(drafts))?;
        }
        Ok(())
    }

    /// Seconds of one append among many.
    fn appends(&mut self) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..APPENDS {
            let draft = self.next();
            self.ledger.append_blocking(draft)?;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(APPENDS))
    }
}
