//! `fluffy config show`: every key, its value, and where that came from.

use fluffy_config::Origin;
use fluffy_report::{Column, ExitCode, Table};
use serde_json::{Map, Value, json};

use crate::args::ConfigCommand;
use crate::command::Outcome;
use crate::session::Session;

/// Runs one of the `config` commands.
pub(crate) fn run(session: &Session, command: &ConfigCommand) -> Outcome {
    match command {
        ConfigCommand::Show { origin } => show(session, *origin),
    }
}

fn show(session: &Session, with_origin: bool) -> Outcome {
    let here = session.here()?;
    if session.json() {
        let keys: Map<String, Value> = here
            .settings
            .entries()
            .map(|entry| {
                let value = json!({"value": entry.value, "origin": origin_json(entry.origin)});
                (entry.key.to_owned(), value)
            })
            .collect();
        session.printer.json(&json!({"config": keys}))?;
        return Ok(ExitCode::Success);
    }
    let mut columns = vec![Column::new("KEY").whole(), Column::new("VALUE")];
    if with_origin {
        columns.push(Column::new("FROM"));
    }
    let mut table = Table::new(columns);
    for entry in here.settings.entries() {
        table.row([
            entry.key.to_owned(),
            entry.value.to_owned(),
            entry.origin.to_string(),
        ]);
    }
    session.printer.table(&table)?;
    Ok(ExitCode::Success)
}

fn origin_json(origin: &Origin) -> Value {
    match origin {
        Origin::Default => json!({"layer": "default"}),
        Origin::User { path, line } => json!({"layer": "user", "path": path, "line": line}),
        Origin::Project { path, line } => json!({"layer": "project", "path": path, "line": line}),
        Origin::Environment { name } => json!({"layer": "environment", "name": name}),
        Origin::Flag { name } => json!({"layer": "flag", "name": name}),
    }
}
