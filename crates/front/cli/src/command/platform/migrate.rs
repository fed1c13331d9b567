//! `fluffy ledger migrate`: from the files of one machine into PostgreSQL.
//!
//! The copying is `fluffy-server`'s; here is who may not be there meanwhile,
//! and what a person does next.

use fluffy_config::env;
use fluffy_ledger::CopyError;
use fluffy_report::{ExitCode, Report};
use fluffy_server::migrate::{MigrateError, migrate};
use serde_json::json;

use super::{ask, serve, target};
use crate::args::{LedgerCommand, MigrateArgs};
use crate::command::Outcome;
use crate::failure::Failure;
use crate::session::Session;

/// Runs one of the `ledger` commands.
pub(crate) fn run(session: &Session, command: LedgerCommand) -> Outcome {
    let LedgerCommand::Migrate(MigrateArgs { to, data }) = command;
    let folder = match data {
        Some(folder) => folder,
        None => target::up_directory(&session.here()?.paths),
    };
    let url = to.or_else(|| session.variable(env::FLUFFY_DATABASE));
    let url = url.ok_or_else(|| {
        Report::new(ExitCode::Usage, "into which database?")
            .fix("set FLUFFY_DATABASE=postgres://USER:PASSWORD@HOST/DATABASE, or add --to")
    })?;
    let address = serve::address(&url)?;
    serve::alone(&folder.join("api.sock"))?;
    let moved = ask::block(async {
        let moved = migrate(&folder, &address).await;
        moved.map_err(|error| failed(&error))
    })?;
    let (seq, hash) = (moved.head.seq, moved.head.hash.to_string());
    if session.json() {
        session.printer.json(&json!({
            "api_version": "v1", "kind": "Migrated",
            "data": {"seq": seq, "hash": hash, "entries": moved.entries},
        }))?;
        return Ok(ExitCode::Success);
    }
    let entries = moved.entries;
    session.printer.data(&format!(
        "copied {seq} events and {entries} entries; the ledger ends with {hash}, there as here"
    ))?;
    let keys = folder.join("keys");
    session.printer.note(&format!(
        "next: fluffy server --keys {}, with the same FLUFFY_DATABASE",
        keys.display()
    ));
    Ok(ExitCode::Success)
}

fn failed(error: &MigrateError) -> Failure {
    let (exit, fix) = match error {
        MigrateError::Missing { .. } => (
            ExitCode::NotFound,
            "name the folder with --data; it has a `ledger` in it",
        ),
        MigrateError::Copy(CopyError::Occupied) => (
            ExitCode::Conflict,
            "name a database that holds no ledger; this one was left as it is",
        ),
        MigrateError::Copy(CopyError::Archived { .. }) => (
            ExitCode::Conflict,
            "keep this ledger in files: a part of it is in the archive already",
        ),
        MigrateError::Copy(CopyError::Grew) => (
            ExitCode::Conflict,
            "end the server that uses the folder, then do it again",
        ),
        MigrateError::Copy(CopyError::Differs { .. }) => (
            ExitCode::Internal,
            "check the ledger with `fluffy audit verify --ledger`; use an empty database",
        ),
        MigrateError::Open(_) | MigrateError::Copy(_) | MigrateError::Aside(_) => (
            ExitCode::Transient,
            "check that the database can be reached, then do it again: it goes on from there",
        ),
        MigrateError::Interrupted => (ExitCode::Transient, "do it again"),
    };
    Failure::of(exit, error, fix)
}
