//! `fluffy policy test`: a table of requests and the decisions they must get.

use std::path::Path;

use fluffy_gate::bundle::read_text;
use fluffy_policy::extension::{Extensions, NoExtensions};
use fluffy_policy::table::{CaseResult, TestTable};
use fluffy_report::{Cell, Column, ExitCode, Table, Tone};
use fluffy_script::{ExtensionSource, Limits, ScriptHost};
use serde_json::json;

use super::{clock, read};
use crate::command::Outcome;
use crate::failure::{self, Failure};
use crate::session::{Session, worker_command};

/// Runs the table.
pub(crate) fn run(session: &Session, path: &Path) -> Outcome {
    let text = read(path)?;
    let shown = path.display().to_string();
    let table = TestTable::parse(&text)
        .map_err(|refused| failure::refused_text(&shown, &text, &refused))?;
    let beside = path.parent().unwrap_or(Path::new("."));
    let (policy_name, policy_text) = match table.policy_path() {
        Some(relative) => (
            beside.join(relative).display().to_string(),
            read(&beside.join(relative))?,
        ),
        None => (shown, String::new()),
    };
    let engine = table
        .engine(&policy_text)
        .map_err(|refused| failure::refused_text(&policy_name, &policy_text, &refused))?;
    let extensions = extensions(&table, beside)?;
    let results = table.run(&engine, clock().now(), extensions.as_ref());
    report(session, &results)
}

fn extensions(table: &TestTable, beside: &Path) -> Result<Box<dyn Extensions>, Failure> {
    if table.extension_paths().is_empty() {
        return Ok(Box::new(NoExtensions));
    }
    let mut sources = Vec::new();
    for relative in table.extension_paths() {
        let path = beside.join(relative);
        let name = path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned());
        let source = match read_text(&path) {
            Ok(Some(source)) => source,
            _ => return Err(failure::missing_extension(&path).into()),
        };
        sources.push(ExtensionSource {
            name: name.unwrap_or_default(),
            source,
        });
    }
    let host = ScriptHost::start(worker_command()?, sources, Limits::SPECIFIED, clock())
        .map_err(|error| failure::extensions(&error))?;
    Ok(Box::new(host))
}

fn report(session: &Session, results: &[CaseResult]) -> Outcome {
    let failed = results.iter().filter(|result| !result.holds()).count();
    let code = if failed == 0 {
        ExitCode::Success
    } else {
        ExitCode::Failure
    };
    if session.json() {
        let value = json!({"cases": results, "passed": results.len() - failed, "failed": failed});
        session.printer.json(&value)?;
        return Ok(code);
    }
    let mut table = Table::new([
        Column::new(""),
        Column::new("CASE"),
        Column::new("DECISION"),
        Column::new("RULES THAT SPOKE"),
    ]);
    for result in results {
        let mark = match result.holds() {
            true => Cell::new("ok").tone(Tone::Good),
            false => Cell::new("FAILED").tone(Tone::Bad),
        };
        table.row([
            mark,
            Cell::new(result.name.clone()),
            Cell::new(result.actual.as_str()),
            Cell::new(result.spoke.join(", ")),
        ]);
    }
    session.printer.table(&table)?;
    for result in results.iter().filter(|result| !result.holds()) {
        session.printer.data(&difference(result))?;
    }
    session
        .printer
        .data(&format!("{} hold, {failed} do not", results.len() - failed))?;
    Ok(code)
}

fn difference(result: &CaseResult) -> String {
    let mut parts = Vec::new();
    if result.expected != result.actual {
        parts.push(format!(
            "expected {}, got {}",
            result.expected, result.actual
        ));
    }
    if !result.silent.is_empty() {
        parts.push(format!("{} did not speak", result.silent.join(", ")));
    }
    format!(
        "line {}: {}: {}",
        result.line,
        result.name,
        parts.join("; ")
    )
}
