//! The agent whole: the real `fluffy run` with a model that answers at once.
//!
//! What a call costs is the time between its two events in the stream that a
//! user sees, so everything of ours is in it: schema, workflow, policy, the
//! sandbox, the ledger's sync. Containers need the engines that `cargo xtask
//! bench agent` starts.

mod bed;
mod calls;
mod footprint;
mod long;
mod parts;
mod search;

use anyhow::Result;

use crate::figure::{Bar, Figure, Samples, Show};

/// All figures of the agent.
pub(crate) fn run() -> Result<Vec<Figure>> {
    let measures: [fn() -> Result<Vec<Figure>>; 8] = [
        calls::start,
        calls::overhead,
        calls::contained,
        parts::run,
        search::run,
        footprint::memory,
        footprint::disk,
        long::run,
    ];
    let mut figures = Vec::new();
    for measure in measures {
        figures.extend(measure()?);
    }
    Ok(figures)
}

/// One figure of times without a reference.
fn time(what: impl Into<String>, seconds: Vec<f64>, bar: Bar) -> Figure {
    Figure {
        what: what.into(),
        ours: Samples::new(seconds, Show::Time),
        reference: None,
        bar,
    }
}
