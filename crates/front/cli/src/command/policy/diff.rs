//! `fluffy policy diff`: what two policies would decide differently.

use std::path::Path;

use fluffy_gate::{Bundle, Gate, LoadedPolicy};
use fluffy_policy::trial::{self, Class, TrialReport};
use fluffy_report::{Cell, Column, ExitCode, Table, Tone};

use super::{clock, places, read};
use crate::command::{Outcome, ledger};
use crate::failure::{self, Failure};
use crate::session::Session;

/// Compares two files on the recorded decisions; changes nothing.
pub(crate) fn run(session: &Session, old: &Path, new: &Path, last: usize) -> Outcome {
    let here = session.here()?;
    let places = places(here)?;
    let load = |path: &Path| -> Result<LoadedPolicy, Failure> {
        LoadedPolicy::with_project(&places, Bundle::of_rules(read(path)?), &clock())
            .map_err(|error| failure::load_policy(&error, Some(path)).into())
    };
    let (before, after) = (load(old)?, load(new)?);
    let opened = ledger::open_existing(session, here)?;
    let records = Gate::decisions_in(&opened.ledger, last).map_err(|e| failure::read_ledger(&e))?;
    ledger::close(session, opened)?;
    let report = trial::compare(before.side(), after.side(), &records);
    show(session, &report)?;
    Ok(ExitCode::Success)
}

/// Prints a trial: only the differences, then the counts.
pub(crate) fn show(session: &Session, report: &TrialReport) -> Result<(), Failure> {
    if session.json() {
        return Ok(session.printer.json(report)?);
    }
    let mut table = Table::new([
        Column::new("CHANGE").whole(),
        Column::new("WHO"),
        Column::new("ACTION").whole(),
        Column::new("RESOURCE"),
        Column::new("BECAUSE"),
    ]);
    for change in &report.changes {
        let (word, tone) = match change.class {
            Class::NewlyAllowed => ("newly allowed", Tone::Caution),
            Class::Breaking => ("BREAKING", Tone::Bad),
            Class::NewlyDenied => ("newly denied", Tone::Plain),
            Class::NewlyReviewed => ("newly reviewed", Tone::Plain),
            Class::CannotReplay => ("cannot replay", Tone::Dim),
        };
        let because = match change.because.as_slice() {
            [] => "no rule allows it".to_owned(),
            reasons => reasons.join("; "),
        };
        table.row([
            Cell::new(word).tone(tone),
            Cell::new(change.principal.clone()),
            Cell::new(change.action.clone()),
            Cell::new(change.resource.clone().unwrap_or_default()),
            Cell::new(because),
        ]);
    }
    if !report.changes.is_empty() {
        session.printer.table(&table)?;
    }
    let tried = report.changed + report.unchanged + report.not_replayed;
    session.printer.data(&format!(
        "{tried} recorded decisions tried: {} change, {} of them BREAKING (allow becomes deny), \
         {} could not be replayed",
        report.changed, report.breaking, report.not_replayed
    ))?;
    Ok(())
}
