//! `fluffy session export`: everything that is recorded of a session.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use fluffy_base::id::SessionId;
use fluffy_kernel::session::Fact;
use fluffy_report::ExitCode;
use serde::Serialize;
use serde_json::json;

use super::{find, unreadable, with_store};
use crate::command::Outcome;
use crate::failure;
use crate::session::Session;

/// The version of the lines.
const VERSION: u32 = 1;

/// One line.
#[derive(Debug, Serialize)]
struct Line<'a> {
    v: u32,
    session: SessionId,
    #[serde(flatten)]
    fact: &'a Fact,
}

/// Writes every fact as a line of JSON.
pub(super) fn run(session: &Session, prefix: &str, output: Option<&Path>) -> Outcome {
    let (id, facts) = with_store(session, |store| {
        let id = find(store, prefix)?;
        let facts = store.facts(id).map_err(|error| unreadable(&error))?;
        Ok((id, facts))
    })?;
    let lines = facts.iter().map(|fact| Line {
        v: VERSION,
        session: id,
        fact,
    });
    let Some(path) = output else {
        for line in lines {
            session.printer.json(&line)?;
        }
        return Ok(ExitCode::Success);
    };
    let mut bytes = Vec::new();
    for line in lines {
        // Plain data of ours always has a JSON form.
        let value = serde_json::to_value(&line).unwrap_or_default();
        bytes.extend_from_slice(fluffy_report::sorted(value).to_string().as_bytes());
        bytes.push(b'\n');
    }
    let written = File::create(path).and_then(|mut file| {
        file.write_all(&bytes)?;
        file.sync_all()
    });
    written.map_err(|error| failure::unwritable(path, &error))?;
    if session.json() {
        let value = json!({"session": id, "facts": facts.len(), "file": path});
        session.printer.json(&value)?;
    } else {
        let words = format!("wrote {} facts of {id} to {}", facts.len(), path.display());
        session.printer.data(&words)?;
    }
    Ok(ExitCode::Success)
}
