//! `fluffy audit export`: JSON Lines that verify on any machine.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use fluffy_ledger::{Compression, ExportOptions};
use fluffy_report::{ExitCode, PrintError, Printer};
use serde_json::json;

use super::open_to_read;
use crate::args::LedgerArg;
use crate::command::{Outcome, ledger};
use crate::failure;
use crate::session::Session;

/// Writes every event that is at hand.
pub(crate) fn run(session: &Session, asked: &LedgerArg, output: Option<&Path>) -> Outcome {
    let here = session.here()?;
    let opened = open_to_read(session, asked)?;
    let last = opened
        .head()
        .map_err(|error| failure::read_ledger(&error))?
        .seq;
    let is_own = asked.ledger.is_none();
    let checkpoint = if is_own && last > 0 {
        let signed = opened.checkpoint_covering(last, &ledger::signing(here));
        Some(signed.map_err(|error| failure::prove(&error))?)
    } else {
        None
    };
    let zstd = output.is_some_and(|path| path.extension().is_some_and(|end| end == "zst"));
    let compression = if zstd {
        Compression::Zstd
    } else {
        Compression::Plain
    };
    let options = ExportOptions {
        compression,
        checkpoint,
    };
    let Some(path) = output else {
        let mut out = Standard {
            printer: &session.printer,
            closed: None,
        };
        let exported = opened.export(&mut out, &options);
        if let Some(closed) = out.closed {
            return Err(closed.into());
        }
        exported.map_err(|error| failure::export(&error))?;
        return Ok(ExitCode::Success);
    };
    let mut file = File::create(path).map_err(|error| failure::unwritable(path, &error))?;
    let exported = opened
        .export(&mut file, &options)
        .map_err(|error| failure::export(&error))?;
    file.sync_all()
        .map_err(|error| failure::unwritable(path, &error))?;
    if session.json() {
        let value = json!({"export": path, "events": exported.events, "hash": exported.last_hash});
        session.printer.json(&value)?;
    } else {
        let events = exported.events;
        session
            .printer
            .data(&format!("wrote {}: {events} events", path.display()))?;
    }
    Ok(ExitCode::Success)
}

/// The printer as a writer, so that a closed pipe ends the export quietly.
struct Standard<'p> {
    printer: &'p Printer,
    /// Set once the reader went away.
    closed: Option<PrintError>,
}

impl Write for Standard<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.printer.raw(bytes) {
            Ok(()) => Ok(bytes.len()),
            Err(closed @ PrintError::Closed) => {
                self.closed = Some(closed);
                Err(io::ErrorKind::BrokenPipe.into())
            }
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
