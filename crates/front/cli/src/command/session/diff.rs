//! `fluffy session diff`: what a session would change, from its layer.

use fluffy_kernel::api::{Reply, SessionOrder};
use fluffy_report::{ExitCode, Text};
use serde_json::json;

use super::{find, unreadable, with_store};
use crate::command::agent::connect::{KernelPlace, running};
use crate::command::agent::runtime;
use crate::command::agent::show::diff;
use crate::command::{Outcome, layer};
use crate::failure::Failure;
use crate::session::Session;

/// Prints the diff.
pub(super) fn run(session: &Session, prefix: &str) -> Outcome {
    let recorded = with_store(session, |store| {
        let id = find(store, prefix)?;
        store.load(id).map_err(|error| unreadable(&error).into())
    })?;
    let here = session.here()?;
    let held =
        layer::open_store(here).and_then(|store| layer::hold(&store, &recorded.layer.to_string()));
    let text = match held {
        Ok(held) => {
            let difference = held
                .difference()
                .map_err(|error| layer::unreadable(&error))?;
            difference.to_string()
        }
        // A kernel at work holds the layer; it knows what is in it.
        Err(Failure::Report(report)) if report.exit() == ExitCode::Conflict => {
            let place = KernelPlace::of(here)?;
            let reply = runtime()?.block_on(async {
                let mut kernel = running(place).await?;
                kernel.order(recorded.id, SessionOrder::Diff).await
            })?;
            match reply {
                Reply::Text { text } => text,
                Reply::Done { .. } | Reply::Refused { .. } | Reply::Status(_) => {
                    return Err(Failure::Report(report));
                }
            }
        }
        Err(failure) => return Err(failure),
    };
    show(session, &text, &recorded.id.to_string())
}

fn show(session: &Session, text: &str, id: &str) -> Outcome {
    if session.json() {
        session
            .printer
            .json(&json!({"session": id, "diff": text}))?;
        return Ok(ExitCode::Success);
    }
    if text.is_empty() {
        session.printer.note("The session changes nothing.");
        return Ok(ExitCode::Success);
    }
    // In a pipe it is data, for git and other programs, to the last line.
    if session.printer.width().is_none() {
        session.printer.raw(text.as_bytes())?;
        return Ok(ExitCode::Success);
    }
    let mut shown = Text::new();
    shown.append(diff(text));
    session.printer.text(&shown)?;
    Ok(ExitCode::Success)
}
