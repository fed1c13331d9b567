//! A million events of real commands, folded in every way there is.
//!
//! What must be equal is checked by what does it, which `fluffy-server` runs
//! as a test at a hundredth of the length.

use std::time::Duration;

use anyhow::Result;
use fluffy_test_kit::campaign;

use super::exact;
use crate::figure::{Bar, Figure, Samples, Show};
use crate::rebuild;

/// What a rebuild must reach, in events a second.
pub(super) const REBUILD: f64 = 20_000.0;

/// Rebuilding and verifying a long history.
pub(super) async fn run() -> Result<Vec<Figure>> {
    let home = tempfile::tempdir()?;
    let found = rebuild::run(20, campaign(100_000, 1_000_000), home.path()).await;
    let events = found.events;
    let rate = |what: String, took: Duration, bar| Figure {
        what,
        ours: Samples::new(vec![took.as_secs_f64() / exact(events)], Show::Rate),
        reference: None,
        bar,
    };
    let reads = found.reads.iter().map(Duration::as_secs_f64).collect();
    Ok(vec![
        rate(
            format!("views rebuilt, {events} events"),
            found.rebuilding,
            Bar::PerSecond(REBUILD),
        ),
        rate(
            "views rebuilt from the archive alone".to_owned(),
            found.from_archive,
            Bar::PerSecond(REBUILD),
        ),
        rate(
            "chain verified".to_owned(),
            found.verifying,
            Bar::PerSecond(250_000.0),
        ),
        Figure {
            what: "a read while views are rebuilt".to_owned(),
            ours: Samples::new(reads, Show::Time),
            reference: None,
            bar: Bar::P99Under(0.1),
        },
    ])
}
