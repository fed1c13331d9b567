//! `fluffy session list`: which sessions there are, and how they ended.

use fluffy_kernel::event::SessionResult;
use fluffy_kernel::store::Listed;
use fluffy_report::{Cell, Column, ExitCode, Table, Tone};
use serde_json::json;

use super::{unreadable, with_store};
use crate::command::Outcome;
use crate::command::agent::show::words::short_id;
use crate::session::Session;

/// Which sessions are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Those the database holds.
    Recent,
    /// Also those in its archive.
    Archived,
}

impl Which {
    pub(super) fn from_flag(archived: bool) -> Self {
        if archived {
            Self::Archived
        } else {
            Self::Recent
        }
    }
}

/// Prints the newest sessions.
pub(super) fn run(session: &Session, last: usize, which: Which) -> Outcome {
    let (all, has_archived) = with_store(session, |store| {
        let all = match which {
            Which::Recent => store.list(),
            Which::Archived => store.list_archived(),
        };
        let read = all.and_then(|all| Ok((all, store.has_archived()?)));
        read.map_err(|error| unreadable(&error).into())
    })?;
    let settings = &session.here()?.settings.values().ledger;
    let (days, size) = (settings.retention_days, settings.retention_size);
    let shown: Vec<&Listed> = all.iter().take(last).collect();
    if session.json() {
        let value = json!({"sessions": shown, "all": all.len(), "retention_days": days});
        session.printer.json(&value)?;
        return Ok(ExitCode::Success);
    }
    let are_more = has_archived && which == Which::Recent;
    if shown.is_empty() {
        session.printer.data(match are_more {
            true => "No session in the last 30 days; older ones: --archived",
            false => "No session yet; begin one with: fluffy \"TASK\"",
        })?;
        return Ok(ExitCode::Success);
    }
    let mut table = Table::new([
        Column::new("SESSION").whole(),
        Column::new("BEGAN").whole(),
        Column::new("RESULT").whole(),
        Column::new("TASK"),
    ]);
    for one in &shown {
        let (tone, word) = result(one.result.as_ref());
        table.row([
            Cell::new(short_id(&one.id.to_string())),
            Cell::new(one.started.to_string()),
            Cell::new(word).tone(tone),
            Cell::new(one.task.as_str()),
        ]);
    }
    session.printer.table(&table)?;
    let hidden = all.len() - shown.len();
    if hidden > 0 {
        session
            .printer
            .note(&format!("{hidden} older ones: --last {}", all.len()));
    }
    if are_more {
        let older = "Sessions of more than 30 days ago are in the archive: --archived";
        session.printer.note(older);
    }
    session.printer.note(&format!(
        "Kept for {days} days or {size}; what is deleted then is recorded in the ledger."
    ));
    Ok(ExitCode::Success)
}

/// The word for how a session ended.
pub(super) fn result(result: Option<&SessionResult>) -> (Tone, &'static str) {
    match result {
        None => (Tone::Plain, "open"),
        Some(SessionResult::Verified) => (Tone::Good, "verified"),
        Some(SessionResult::Unverified) => (Tone::Caution, "UNVERIFIED"),
        Some(SessionResult::Exempt) => (Tone::Caution, "exempt"),
        Some(SessionResult::Unfinished) => (Tone::Caution, "unfinished"),
        Some(SessionResult::Waiting) => (Tone::Caution, "waiting"),
        Some(SessionResult::Budget) => (Tone::Caution, "budget"),
        Some(SessionResult::Denied) => (Tone::Bad, "denied"),
        Some(SessionResult::Cancelled) => (Tone::Caution, "stopped"),
        Some(SessionResult::Diverged) => (Tone::Bad, "diverged"),
        Some(SessionResult::Failed) => (Tone::Bad, "failed"),
    }
}
