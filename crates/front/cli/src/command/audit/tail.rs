//! `fluffy audit tail`: events as they arrive.

use std::time::Duration;

use fluffy_ledger::{Delivery, Filter};
use fluffy_report::ExitCode;

use super::{open_to_read, show};
use crate::args::LedgerArg;
use crate::command::Outcome;
use crate::failure;
use crate::session::Session;

/// How long one wait may take; there is always another.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where to start and stop.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// From this position instead of from now on.
    pub(crate) from: Option<u64>,
    /// Stop after this many.
    pub(crate) count: Option<u64>,
}

/// Prints events until enough have come or the person stops it.
pub(crate) fn run(session: &Session, asked: &LedgerArg, wanted: &Wanted) -> Outcome {
    let ledger = open_to_read(session, asked)?;
    let head = ledger
        .head()
        .map_err(|error| failure::read_ledger(&error))?;
    let mut events = ledger.subscribe(wanted.from.unwrap_or(head.seq + 1), Filter::all());
    let mut left = wanted.count.unwrap_or(u64::MAX);
    while left > 0 {
        let next = events
            .next_blocking(PATIENCE)
            .map_err(|error| failure::follow(&error))?;
        let Some(Delivery::Event(event)) = next else {
            continue;
        };
        left -= 1;
        if session.json() {
            session.printer.json(&show::json(&event))?;
        } else {
            session.printer.data(&show::line(&event))?;
        }
    }
    Ok(ExitCode::Success)
}
