//! `fluffy init`: a starter policy, a ledger, and the key to check it by.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use fluffy_config::project;
use fluffy_ledger::{Actor, ActorKind, Aggregate, Batch, Domain, Draft};
use fluffy_policy::starter::STARTER;
use fluffy_report::{ExitCode, Report};
use serde_json::json;

use crate::command::{Outcome, ledger, person};
use crate::failure::Failure;
use crate::session::Session;

const CONFIG: &str = "\
# Settings of this project. They are data: what could loosen a rule or send a
# key elsewhere belongs into your own ~/.config/fluffy/config.toml.
# `fluffy config show --origin` lists every key and where its value comes from.

# [tests]
# command = [\"cargo\", \"test\"]
";

/// Sets up the project in this folder.
pub(crate) fn run(session: &Session) -> Outcome {
    let start = session.folder()?;
    let root = project::find_root(&start).unwrap_or(start);
    let here = session.here_in(&root)?;
    let folder = root.join(project::DIRECTORY);
    fs::create_dir_all(&folder).map_err(|error| cannot_write(&folder, &error))?;
    let mut written = Vec::new();
    for (name, text) in [("policy.yaml", STARTER), ("config.toml", CONFIG)] {
        let path = folder.join(name);
        if write_new(&path, text).map_err(|error| cannot_write(&path, &error))? {
            written.push(path);
        }
    }
    let open = ledger::open(session, &here)?;
    let key = open
        .ledger
        .public_key()
        .map(|key| key.to_string())
        .unwrap_or_default();
    let id = open.ledger.id();
    if !written.is_empty() {
        record(&open.ledger, &root, &written)?;
    }
    ledger::close(session, open)?;
    if session.json() {
        let value = json!({"project": root, "written": written, "ledger": id, "public_key": key});
        session.printer.json(&value)?;
        return Ok(ExitCode::Success);
    }
    for path in &written {
        session.printer.data(&format!("wrote {}", path.display()))?;
    }
    if written.is_empty() {
        session
            .printer
            .data("Nothing to write: this project has its files already.")?;
    }
    session.printer.data(&format!("ledger {id}"))?;
    session.printer.data(&format!("public key {key}"))?;
    session.printer.note(
        "Keep the public key somewhere else: `fluffy audit verify --key` checks against it.\n\
         Read .fluffy/policy.yaml, change what you like, and put it in force with \
         `fluffy policy apply`.",
    );
    Ok(ExitCode::Success)
}

/// Writes a file unless there is one; says whether it did.
fn write_new(path: &Path, text: &str) -> io::Result<bool> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(mut file) => file.write_all(text.as_bytes()).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

fn record(ledger: &fluffy_ledger::Ledger, root: &Path, written: &[PathBuf]) -> Result<(), Failure> {
    let names: Vec<_> = written
        .iter()
        .filter_map(|path| path.file_name()?.to_str())
        .collect();
    let payload = json!({"project": root, "written": names});
    let aggregate = Aggregate::new("project", root.display().to_string());
    let actor = Actor::new(ActorKind::User, person::name());
    let draft = Draft::new(Domain::Agent, aggregate, "project.initialized", actor).payload(payload);
    ledger
        .append_blocking(Batch::from(draft))
        .map(|_| ())
        .map_err(|error| {
            Failure::of(
                ExitCode::Internal,
                &error,
                "make room on the disk and run it again",
            )
        })
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Report::new(
        ExitCode::Failure,
        format!("cannot write `{}`", path.display()),
    )
    .why(error.to_string())
    .fix("check that the folder is yours and that the disk has room")
    .into()
}
