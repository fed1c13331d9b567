//! `fluffy layer diff`: what a layer would change, as people and git read it.

use fluffy_report::ExitCode;

use super::{hold, open_store, unreadable};
use crate::command::Outcome;
use crate::session::Session;

/// Prints the diff of a layer.
pub(super) fn run(session: &Session, prefix: &str) -> Outcome {
    let store = open_store(session.here()?)?;
    let held = hold(&store, prefix)?;
    let difference = held.difference().map_err(|error| unreadable(&error))?;
    if session.json() {
        session.printer.json(&difference)?;
        return Ok(ExitCode::Success);
    }
    session.printer.raw(difference.to_string().as_bytes())?;
    for problem in &difference.problems {
        session.printer.warn(&format!(
            "`{}`: {}",
            problem.path,
            problem.reason.sentence()
        ));
    }
    if difference.files.is_empty() {
        session.printer.note("The layer changes nothing.");
    }
    Ok(ExitCode::Success)
}
