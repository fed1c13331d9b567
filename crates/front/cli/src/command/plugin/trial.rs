//! `fluffy plugin test` as people and programs see it: a line per check.

use std::path::Path;

use fluffy_plugin_host::shelf::{ExamineError, examine};
use fluffy_report::{Cell, Column, ExitCode, Table, Tone};
use serde_json::{Value, json};

use super::bench::{Bench, check_grant};
use super::examined;
use super::host::runtime;
use super::suite::{Finding, Found, check};
use crate::command::{Outcome, ledger};
use crate::failure::{self, Failure};
use crate::session::Session;

/// The version of what `--json` prints.
const VERSION: u32 = 1;

/// Runs the contract's checks against the plugin in a folder.
pub(super) fn run(session: &Session, folder: &Path, grant: &[String]) -> Outcome {
    let here = session.here()?;
    check_grant(grant)?;
    // A folder that is no plugin's at all is a mistake of the person's.
    if let Err(error @ ExamineError::NoManifest { .. }) = examine(folder) {
        return Err(examined(&error));
    }
    let paths = here.paths.create();
    paths.map_err(|error| failure::paths(&error))?;
    let opened = ledger::open(session, here)?;
    let runtime = runtime()?;
    let findings = runtime.block_on(async {
        let bench = Bench::open(session, here, &opened, grant).await?;
        Ok::<_, Failure>(check(&bench, folder).await)
    });
    runtime.shutdown_background();
    ledger::close(session, opened)?;
    let findings = findings?;
    let broken = findings
        .iter()
        .filter(|finding| matches!(finding.found, Found::Broken { .. }));
    let broken = broken.count();
    if session.json() {
        let checks: Vec<Value> = findings.iter().map(in_json).collect();
        let value = json!({"v": VERSION, "ok": broken == 0, "checks": checks});
        session.printer.json(&value)?;
    } else {
        show(session, &findings, broken)?;
    }
    Ok(match broken {
        0 => ExitCode::Success,
        _ => ExitCode::Failure,
    })
}

fn show(session: &Session, findings: &[Finding], broken: usize) -> Result<(), Failure> {
    let mut table = Table::new(["", "CHECK", "ABOUT", "FOUND"].map(Column::new));
    for finding in findings {
        let (mark, tone, text) = match &finding.found {
            Found::Held(text) => ("✓", Tone::Good, text),
            Found::Broken { why, .. } => ("✗", Tone::Bad, why),
            Found::Skipped(text) => ("–", Tone::Plain, text),
        };
        table.row([
            Cell::new(mark).tone(tone),
            Cell::new(finding.check),
            Cell::new(finding.title),
            Cell::new(text.as_str()),
        ]);
    }
    session.printer.table(&table)?;
    for finding in findings {
        if let Found::Broken { why, fix } = &finding.found {
            let text = format!("\n✗ {}\n  why: {why}\n  fix: {fix}", finding.check);
            session.printer.data(&text)?;
        }
    }
    let skipped = findings
        .iter()
        .filter(|finding| matches!(finding.found, Found::Skipped(_)));
    let (skipped, all) = (skipped.count(), findings.len());
    let held = all - skipped - broken;
    let line = format!("\n{held} of {all} hold, {broken} do not, {skipped} were not looked at");
    session.printer.data(&line)?;
    Ok(())
}

fn in_json(finding: &Finding) -> Value {
    let (outcome, what, fix) = match &finding.found {
        Found::Held(text) => ("held", text, None),
        Found::Broken { why, fix } => ("broken", why, Some(fix)),
        Found::Skipped(text) => ("skipped", text, None),
    };
    json!({"check": finding.check, "about": finding.title, "outcome": outcome, "what": what, "fix": fix})
}
