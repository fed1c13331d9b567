//! `fluffy plugin list`, `inspect`, `logs`: what is there, and what it said.

use std::fmt::Write as _;
use std::path::Path;

use fluffy_plugin_core::Manifest;
use fluffy_plugin_core::manifest::Start;
use fluffy_plugin_core::words::all_in_words;
use fluffy_plugin_host::log;
use fluffy_plugin_host::shelf::{Found, Record, examine};
use fluffy_report::{Cell, Column, ExitCode, Table, Tone};
use serde_json::json;

use super::{Source, examined, shelf};
use crate::command::Outcome;
use crate::failure::Failure;
use crate::session::Session;

/// Which plugins are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Every one.
    All,
    /// Those that cannot run.
    Rejected,
}

impl Which {
    pub(super) fn from_flag(rejected: bool) -> Self {
        if rejected { Self::Rejected } else { Self::All }
    }
}

/// Lists what is installed.
pub(super) fn list(session: &Session, which: Which) -> Outcome {
    let here = session.here()?;
    let found = shelf(here)?.list().map_err(|error| {
        let fix = "check that the state directory is yours";
        Failure::of(ExitCode::Failure, &error, fix)
    })?;
    let rows = found
        .iter()
        .filter(|one| which == Which::All || one.placed.is_err());
    let rows: Vec<Row> = rows.map(row).collect();
    if session.json() {
        let rows: Vec<_> = rows.iter().map(Row::json).collect();
        session.printer.json(&json!({"plugins": rows}))?;
        return Ok(ExitCode::Success);
    }
    if rows.is_empty() {
        session.printer.note(match which {
            Which::All => "No plugin is installed.",
            Which::Rejected => "No plugin is rejected.",
        });
        return Ok(ExitCode::Success);
    }
    let names = ["PLUGIN", "VERSION", "TYPE", "STATE", "WHY"];
    let mut table = Table::new(names.map(Column::new));
    for row in &rows {
        let tone = match row.state {
            "rejected" => Tone::Caution,
            _ => Tone::Plain,
        };
        table.row([
            Cell::new(row.name.as_str()),
            Cell::new(row.version.as_str()),
            Cell::new(row.kind),
            Cell::new(row.state).tone(tone),
            Cell::new(row.why.as_str()),
        ]);
    }
    session.printer.table(&table)?;
    Ok(ExitCode::Success)
}

/// Lists what comes with the product.
pub(super) fn built_in(session: &Session) -> Outcome {
    let manifests = crate::built_in::manifests().map_err(|error| {
        let fix = "please report this: the manifests are our own";
        Failure::of(ExitCode::Internal, &error, fix)
    })?;
    if session.json() {
        let listed: Vec<_> = manifests.iter().map(of_built_in).collect();
        session.printer.json(&json!({"built_in": listed}))?;
        return Ok(ExitCode::Success);
    }
    let names = ["TOOL", "EFFECT", "WHAT IT DOES"];
    let mut table = Table::new(names.map(Column::new));
    for manifest in &manifests {
        for tool in &manifest.tools {
            table.row([
                Cell::new(format!("{}.{}", manifest.name, tool.name)),
                Cell::new(tool.effect.as_str()),
                Cell::new(tool.summary.as_str()),
            ]);
        }
    }
    session.printer.table(&table)?;
    Ok(ExitCode::Success)
}

fn of_built_in(manifest: &Manifest) -> serde_json::Value {
    let tools = manifest.tools.iter().map(|tool| {
        json!({
            "name": format!("{}.{}", manifest.name, tool.name),
            "effect": tool.effect.as_str(),
            "summary": tool.summary,
        })
    });
    let tools: Vec<_> = tools.collect();
    let mut listed = json(manifest, None);
    if let Some(fields) = listed.as_object_mut() {
        fields.remove("record");
        fields.insert("tools".to_owned(), tools.into());
    }
    listed
}

/// A plugin as it is listed.
struct Row {
    name: String,
    version: String,
    kind: &'static str,
    state: &'static str,
    why: String,
}

impl Row {
    fn json(&self) -> serde_json::Value {
        json!({
            "name": self.name,
            "version": self.version,
            "type": self.kind,
            "state": self.state,
            "why": self.why,
        })
    }
}

fn row(found: &Found) -> Row {
    let name = found.name.clone();
    match &found.placed {
        Ok(placed) => Row {
            name,
            version: placed.manifest.version.to_string(),
            kind: placed.manifest.kind.as_str(),
            state: match placed.record.disabled {
                Some(_) => "disabled",
                None => "enabled",
            },
            why: placed.record.disabled.clone().unwrap_or_default(),
        },
        Err(error) => Row {
            name,
            version: String::new(),
            kind: "",
            state: "rejected",
            why: fluffy_kernel::agent::explain(error),
        },
    }
}

/// Shows one plugin, installed or in a folder.
pub(super) fn inspect(session: &Session, plugin: &str) -> Outcome {
    let here = session.here()?;
    // No plugin has a name like one.
    let is_path = plugin.contains(['/', '.']) || Path::new(plugin).join("plugin.yaml").exists();
    let (manifest, record) = match is_path {
        true => {
            let source = Source::open(&shelf(here)?, Path::new(plugin))?;
            let found = examine(&source.folder).map_err(|error| examined(&error))?;
            (found.manifest, None)
        }
        false => {
            let placed = shelf(here)?
                .find(plugin)
                .map_err(|error| examined(&error))?;
            (placed.manifest, Some(placed.record))
        }
    };
    if session.json() {
        session.printer.json(&json(&manifest, record.as_ref()))?;
        return Ok(ExitCode::Success);
    }
    let granted = record.as_ref().map(|record| record.granted.clone());
    let mut text = described(&manifest, &granted.unwrap_or_default());
    if let Some(record) = record {
        let _ = writeln!(text, "  from      {}", record.source);
        let _ = writeln!(text, "  installed {}", record.installed);
        let _ = writeln!(text, "  sha256    {}", record.pin.digest);
        let tools: Vec<&str> = record.tools.keys().map(String::as_str).collect();
        if !tools.is_empty() {
            let _ = writeln!(text, "  tools     {}", tools.join(", "));
        }
        if let Some(why) = record.disabled {
            let _ = writeln!(text, "  disabled  {why}");
        }
    }
    session.printer.data(text.trim_end())?;
    Ok(ExitCode::Success)
}

fn json(manifest: &Manifest, record: Option<&Record>) -> serde_json::Value {
    let capabilities: Vec<&str> = manifest
        .capabilities
        .iter()
        .map(|one| one.as_str())
        .collect();
    json!({
        "name": manifest.name,
        "version": manifest.version.to_string(),
        "type": manifest.kind.as_str(),
        "capabilities": capabilities,
        "in_words": all_in_words(&manifest.capabilities),
        "record": record,
    })
}

/// What a plugin is and could do, for a person who decides about it.
pub(super) fn described(manifest: &Manifest, granted: &[String]) -> String {
    let mut text = format!(
        "{} {} ({})\n",
        manifest.name,
        manifest.version,
        manifest.kind.as_str()
    );
    if let Some(execution) = &manifest.execution {
        let run = match &execution.start {
            Start::Module { file } => format!("the module {file}"),
            Start::Program { command, .. } => command.join(" "),
            Start::Image { image, command, .. } => format!("{image}: {}", command.join(" ")),
        };
        let limits = &execution.limits;
        let _ = writeln!(text, "  runs      {run}");
        let _ = writeln!(text, "  isolated  tier {}", execution.tier.as_str());
        let _ = writeln!(
            text,
            "  at most   {} memory, {}.{:03} processors, {} processes, {} a call",
            limits.memory,
            limits.cpu_milli / 1_000,
            limits.cpu_milli % 1_000,
            limits.pids,
            limits.call_timeout,
        );
    }
    let words = all_in_words(&manifest.capabilities);
    match words.as_slice() {
        [] => text.push_str("  It can do nothing outside its sandbox.\n"),
        words => words.iter().for_each(|line| {
            let _ = writeln!(text, "  It {line}");
        }),
    }
    for denied in &manifest.deny_capabilities {
        let _ = writeln!(text, "  never     {}", denied.as_str());
    }
    if !granted.is_empty() && granted != ["*"] {
        let _ = writeln!(text, "  granted   only {}", granted.join(", "));
    }
    text
}

/// Shows the last lines of a plugin's log.
pub(super) fn logs(session: &Session, name: &str, count: usize) -> Outcome {
    let here = session.here()?;
    let shelf = shelf(here)?;
    shelf.record(name).map_err(|error| examined(&error))?;
    let lines = log::read(&shelf.home(name).join("log")).map_err(|error| {
        let fix = "check that the state directory is yours";
        Failure::of(ExitCode::Failure, &error, fix)
    })?;
    let start = lines.len().saturating_sub(count);
    let lines = lines.get(start..).unwrap_or_default();
    for line in lines {
        if session.json() {
            session.printer.json(&json!(line))?;
        } else {
            let level = json!(line.level);
            let level = level.as_str().unwrap_or_default();
            session
                .printer
                .data(&format!("{} {level:5} {}", line.at, line.text))?;
        }
    }
    if lines.is_empty() && !session.json() {
        session.printer.note("It said nothing yet.");
    }
    Ok(ExitCode::Success)
}
