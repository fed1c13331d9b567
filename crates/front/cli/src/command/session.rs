//! `fluffy session …`: what the ledger holds of the agent's sessions.
//!
//! Listing, showing, exporting and diffs only read, and need no kernel. Going
//! on, forking and undoing are the kernel's work; this asks for it.

mod ask;
mod diff;
mod export;
mod list;
mod show;

use fluffy_base::id::SessionId;
use fluffy_kernel::session::Fact;
use fluffy_kernel::store::{LoadSessionError, SessionStore};
use fluffy_report::{ExitCode, Report};

use crate::args::SessionCommand;
use crate::command::gate::Yes;
use crate::command::{Outcome, ledger};
use crate::failure::{self, Failure};
use crate::session::Session;

/// Runs one of the `session` commands.
pub(crate) fn run(session: &Session, command: SessionCommand) -> Outcome {
    match command {
        SessionCommand::List { last, archived } => {
            list::run(session, last, list::Which::from_flag(archived))
        }
        SessionCommand::Show { id } => show::run(session, &id),
        SessionCommand::Resume { id, yes_auto } => {
            ask::resume(session, &id, Yes::from_flag(yes_auto))
        }
        SessionCommand::Fork { id, words, work } => {
            ask::fork(session, &id, &words.join(" "), &work)
        }
        SessionCommand::Diff { id } => diff::run(session, &id),
        SessionCommand::Undo { id } => ask::undo(session, id.as_deref()),
        SessionCommand::Export { id, output } => export::run(session, &id, output.as_deref()),
    }
}

/// Does something with the sessions of the user's ledger, then closes it.
fn with_store<T>(
    session: &Session,
    act: impl FnOnce(&SessionStore) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let opened = ledger::open_existing(session, session.here()?)?;
    let store = SessionStore::new(opened.ledger.clone());
    let acted = act(&store);
    ledger::close(session, opened)?;
    acted
}

/// Everything that is recorded of a session.
pub(crate) fn facts_of(session: &Session, id: SessionId) -> Result<Vec<Fact>, Failure> {
    with_store(session, |store| {
        let facts = store.facts(id);
        facts.map_err(|error| unreadable(&error).into())
    })
}

/// The session whose id begins like this.
fn find(store: &SessionStore, prefix: &str) -> Result<SessionId, Failure> {
    store
        .find(prefix)
        .map_err(|error| unreadable(&error).into())
}

/// A session cannot be read.
fn unreadable(error: &LoadSessionError) -> Report {
    let (exit, fix) = match error {
        LoadSessionError::None { .. } => (
            ExitCode::NotFound,
            "`fluffy session list` shows every session",
        ),
        LoadSessionError::Ambiguous { .. } => (ExitCode::Usage, "give more of the id"),
        LoadSessionError::Store(error) => return failure::read_ledger(error),
        LoadSessionError::Forgotten { .. } => (
            ExitCode::NotFound,
            "set ledger.retention_days and ledger.retention_size higher to keep more from now on",
        ),
        LoadSessionError::Archive(_) => (
            ExitCode::Internal,
            "run `fluffy audit verify`, and restore the ledger's archive from your backup",
        ),
        LoadSessionError::Shape { .. }
        | LoadSessionError::Fold(_)
        | LoadSessionError::TooManyForks { .. } => (
            ExitCode::Internal,
            "run `fluffy audit verify`; a newer fluffy may have written it",
        ),
    };
    Report::from_error(exit, error).fix(fix)
}
