//! Opening and closing the user's own ledger, for every command that needs it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fluffy_ledger::health::Health;
use fluffy_ledger::retention::Retention;
use fluffy_ledger::{Ledger, LedgerOptions, Signing, Witness};
use fluffy_report::{ExitCode, Report};

use crate::failure::{self, Failure};
use crate::session::{Here, Session};

/// The user's ledger, open.
#[derive(Debug)]
pub(crate) struct OpenLedger {
    /// The handle.
    pub(crate) ledger: Ledger,
}

/// Opens the user's ledger, creating it and its key if there is none.
pub(crate) fn open(session: &Session, here: &Here) -> Result<OpenLedger, Failure> {
    here.paths
        .create()
        .map_err(|error| failure::paths(&error))?;
    let folder = folder(here)?;
    let options = LedgerOptions {
        signing: Some(signing(here)),
        ..LedgerOptions::default()
    };
    let recovered =
        Ledger::open_or_salvage(&folder, options).map_err(|error| failure::salvage(&error))?;
    if let Some(salvage) = &recovered.salvage {
        session.printer.warn(&failure::salvaged(salvage));
    }
    if let Health::Broken(finding) = &recovered.health {
        session.printer.warn(&format!(
            "THE LEDGER IS BROKEN at {finding}; run `fluffy audit verify` and see the audit guide"
        ));
    }
    let ledger = recovered.ledger;
    session
        .printer
        .detail(&format!("ledger {} in {}", ledger.id(), folder.display()));
    Ok(OpenLedger { ledger })
}

/// Opens the user's ledger; reading commands do not create one.
pub(crate) fn open_existing(session: &Session, here: &Here) -> Result<OpenLedger, Failure> {
    let folder = folder(here)?;
    if exists(&folder) {
        return open(session, here);
    }
    Err(none_in(&folder).into())
}

/// There is no ledger where one was looked for.
pub(crate) fn none_in(folder: &Path) -> Report {
    let what = format!("there is no ledger in `{}`", folder.display());
    Report::new(ExitCode::NotFound, what)
        .fix("run `fluffy init` to start one, or name another with --ledger")
}

/// Keeps to the retention, writes what is buffered, signs the last checkpoint.
pub(crate) fn close(session: &Session, open: OpenLedger) -> Result<(), Failure> {
    let here = session.here()?;
    // What was asked for is done; that old days cannot be archived now is
    // worth a word, not a failure.
    if let Err(error) = open.ledger.enforce(&retention(here)?) {
        session
            .printer
            .warn(&format!("old events could not be archived: {error}"));
    }
    open.ledger.close().map_err(|error| {
        let fix = "make room on the disk of the state directory and run the command again";
        Failure::of(ExitCode::Internal, &error, fix)
    })
}

fn retention(here: &Here) -> Result<Retention, Failure> {
    let settings = &here.settings.values().ledger;
    let days = settings.retention_days.saturating_mul(24 * 60 * 60);
    let agent = Retention::agent(&folder(here)?);
    let keep = Duration::from_secs(days);
    Ok(Retention {
        keep_hot: agent.keep_hot.min(keep),
        keep,
        budget: settings.retention_size,
        key: Some(key_file(here)),
        ..agent
    })
}

/// The folder of the user's ledger.
pub(crate) fn folder(here: &Here) -> Result<PathBuf, Failure> {
    Ok(here
        .paths
        .ledger_dir(&here.settings)
        .map_err(|error| failure::paths(&error))?)
}

/// The file that holds this ledger's checkpoints, apart from the database.
pub(crate) fn checkpoints_file(here: &Here) -> PathBuf {
    here.paths.checkpoints_dir.join("ledger.checkpoints")
}

/// The file that holds the secret key.
pub(crate) fn key_file(here: &Here) -> PathBuf {
    here.paths.keys_dir.join("ledger.key")
}

/// How this ledger's checkpoints are signed and kept.
pub(crate) fn signing(here: &Here) -> Signing {
    let witnesses = here.settings.values().ledger.witness.iter();
    Signing {
        key: key_file(here),
        checkpoints: checkpoints_file(here),
        witnesses: witnesses
            .map(|path: &PathBuf| Witness::File(path.clone()))
            .collect(),
    }
}

/// Whether a ledger is there at all; reading commands do not create one.
pub(crate) fn exists(folder: &Path) -> bool {
    folder.join("ledger.db").exists()
}

/// The archived segments of the ledger, oldest first.
pub(crate) fn archives(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.join(fluffy_ledger::archive::ARCHIVE))
        .into_iter()
        .flatten()
        .flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "zst"));
    files.sort();
    files
}
