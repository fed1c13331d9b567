//! `fluffy audit log`: events, newest last.

use fluffy_ledger::{Event, Ledger};
use fluffy_report::ExitCode;

use super::{open_to_read, show};
use crate::args::LedgerArg;
use crate::command::Outcome;
use crate::failure;
use crate::session::Session;

/// Which events are wanted.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// How many of the newest.
    pub(crate) last: u64,
    /// Only this type; a final `*` stands for anything.
    pub(crate) event_type: Option<String>,
    /// From this position on, instead of the newest.
    pub(crate) from: Option<u64>,
}

/// Prints events.
pub(crate) fn run(session: &Session, ledger: &LedgerArg, wanted: &Wanted) -> Outcome {
    let ledger = open_to_read(session, ledger)?;
    let events = select(&ledger, wanted).map_err(|error| failure::read_ledger(&error))?;
    if session.json() {
        for event in &events {
            session.printer.json(&show::json(event))?;
        }
        return Ok(ExitCode::Success);
    }
    if events.is_empty() {
        session.printer.note("No such event in the ledger.");
        return Ok(ExitCode::Success);
    }
    let mut table = show::table();
    for event in &events {
        table.row(show::row(event));
    }
    session.printer.table(&table)?;
    Ok(ExitCode::Success)
}

fn select(ledger: &Ledger, wanted: &Wanted) -> Result<Vec<Event>, fluffy_ledger::StoreError> {
    let fits = |event: &Event| match wanted.event_type.as_deref() {
        None => true,
        Some(pattern) => match pattern.strip_suffix('*') {
            Some(prefix) => event.event_type.starts_with(prefix),
            None => event.event_type == pattern,
        },
    };
    let Some(from) = wanted.from else {
        let last = usize::try_from(wanted.last).unwrap_or(usize::MAX);
        return ledger.last_where(last, fits);
    };
    let mut next = from.max(ledger.first_hot()?);
    let mut found = Vec::new();
    loop {
        let events = ledger.read(next, 1_000)?;
        let Some(last) = events.last() else {
            return Ok(found);
        };
        next = last.seq + 1;
        found.extend(events.into_iter().filter(fits));
    }
}
