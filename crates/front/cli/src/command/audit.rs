//! `fluffy audit …`: read the ledger, verify it, prove what it says.

pub(crate) mod excerpt;
mod export;
mod links;
mod log;
mod proof;
pub(crate) mod show;
mod tail;
mod verify;

use fluffy_ledger::Ledger;
use fluffy_report::{ExitCode, Report};

use crate::args::{AuditCommand, LedgerArg};
use crate::command::{Outcome, ledger};
use crate::failure::{self, Failure};
use crate::session::Session;

/// Runs one of the `audit` commands.
pub(crate) fn run(session: &Session, command: AuditCommand) -> Outcome {
    match command {
        AuditCommand::Log {
            ledger,
            last,
            event_type,
            from,
        } => log::run(
            session,
            &ledger,
            &log::Wanted {
                last,
                event_type,
                from,
            },
        ),
        AuditCommand::Verify {
            ledger,
            extent,
            against,
            key,
            follow,
            export: None,
        } => {
            let key = only(key)?;
            let wanted = verify::Wanted {
                extent: extent.into(),
                against,
                key,
                follow,
            };
            verify::run(session, &ledger, &wanted)
        }
        AuditCommand::Verify {
            export: Some(export),
            key,
            ..
        } => excerpt::run(session, &export, &key),
        AuditCommand::Prove { seq, output } => proof::prove(session, seq, output.as_deref()),
        AuditCommand::CheckProof { file, key } => proof::check(session, &file, key.as_deref()),
        AuditCommand::Export { ledger, output } => export::run(session, &ledger, output.as_deref()),
        AuditCommand::Tail {
            ledger,
            from,
            count,
        } => tail::run(session, &ledger, &tail::Wanted { from, count }),
    }
}

/// The key of a ledger, which has one; exports have that of who made them.
fn only(keys: Vec<String>) -> Result<Option<String>, Failure> {
    let mut keys = keys.into_iter();
    let key = keys.next();
    match keys.next() {
        None => Ok(key),
        Some(_) => Err(
            Report::new(ExitCode::Usage, "a ledger is held against one key")
                .fix("name one by --key; several are for --export")
                .into(),
        ),
    }
}

/// Opens the ledger that was asked for; never creates one.
pub(crate) fn open_to_read(session: &Session, asked: &LedgerArg) -> Result<Ledger, Failure> {
    let here = session.here()?;
    let own = ledger::folder(here)?;
    let folder = asked.ledger.clone().unwrap_or_else(|| own.clone());
    if !ledger::exists(&folder) {
        return Err(ledger::none_in(&folder).into());
    }
    if folder == own {
        return Ok(ledger::open(session, here)?.ledger);
    }
    // Somebody else's: no key of ours signs anything about it.
    Ledger::open(&folder, Default::default()).map_err(|error| failure::open_ledger(&error).into())
}
