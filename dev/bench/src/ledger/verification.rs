//! Full verification beside a bare read that hashes the same rows.

use std::time::Instant;

use anyhow::{Result, ensure};
use fluffy_ledger::{Durability, Ledger, VerifyOptions};

use super::load::{Kind, fill};
use super::server::Server;
use super::{bare, postgres, sqlite};
use crate::figure::{Bar, Figure, Samples, Show};

const ROUNDS: u32 = 5;
const KIND: Kind = Kind {
    durability: Durability::Operational,
    payload: 200,
};

/// Both engines; the rate is asked of SQLite only.
pub(super) fn run(server: &Server) -> Result<Vec<Figure>> {
    let directory = tempfile::tempdir()?;
    let ledger = sqlite::open(directory.path())?;
    fill(&ledger, KIND, 300_000)?;
    ledger.flush_blocking()?;
    let beside = measure("SQLite", &ledger, || bare::read_and_hash(directory.path()))?;
    let alone = Figure {
        reference: None,
        bar: Bar::PerSecond(250_000.0),
        ..beside.clone()
    };
    let place = server.open()?;
    fill(&place.ledger, KIND, 100_000)?;
    let url = place.database.url();
    let other = measure("PostgreSQL", &place.ledger, || postgres::read_and_hash(url))?;
    Ok(vec![alone, beside, other])
}

fn measure(engine: &str, ledger: &Ledger, bare: impl Fn() -> Result<u64>) -> Result<Figure> {
    let (mut ours, mut reference) = (Vec::new(), Vec::new());
    // The first round of each warms up and is not counted.
    for round in 0..=ROUNDS {
        let start = Instant::now();
        let verification = ledger.verify(&VerifyOptions::default())?;
        let mine = start.elapsed();
        ensure!(
            verification.is_sound(),
            "{engine}: {:?}",
            verification.verdict
        );
        let start = Instant::now();
        let events = bare()?;
        let other = start.elapsed();
        ensure!(
            events == verification.events,
            "{engine}: not the same events were read"
        );
        if round > 0 {
            let events = f64::from(u32::try_from(events)?);
            ours.push(mine.as_secs_f64() / events);
            reference.push(other.as_secs_f64() / events);
        }
    }
    let reference = Samples::new(reference, Show::Rate);
    Ok(Figure {
        what: format!("full verification, {engine}"),
        ours: Samples::new(ours, Show::Rate),
        reference: Some(("bare read and SHA-256".to_owned(), reference)),
        bar: Bar::TimesReference(0.5),
    })
}
