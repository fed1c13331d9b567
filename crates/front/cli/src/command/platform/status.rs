//! `fluffy status`: an env at a glance.

use fluffy_report::{ExitCode, Text, Tone, Verbosity};
use serde_json::Value;

use super::view::{self, SHARED};
use crate::command::Outcome;
use crate::session::Session;

/// Shows how an env is: groups, routes, conditions, the last deploy and error.
pub(crate) fn show(session: &Session, status: &Value) -> Outcome {
    let text = |pointer: &str| status.pointer(pointer).and_then(Value::as_str);
    let word = text("/status").unwrap_or("unknown");
    if session.printer.verbosity() == Verbosity::Quiet {
        session.printer.data(word)?;
        return Ok(ExitCode::Success);
    }
    let mut head = Text::new();
    let tone = match word {
        "healthy" => Tone::Good,
        "degraded" => Tone::Bad,
        _ => Tone::Caution,
    };
    head.add(tone, word);
    match text("/isolation/level") {
        Some("shared-kernel") => {
            head.plain("  ");
            head.add(Tone::Bad, SHARED);
        }
        Some(level) => {
            head.plain(&format!("  {level}"));
        }
        None => {}
    }
    head.plain("\n");
    session.printer.text(&head)?;
    for (field, kind) in [("groups", "GroupStatus"), ("routes", "Route")] {
        let items = status.get(field).and_then(Value::as_array);
        if let Some(items) = items.filter(|items| !items.is_empty()) {
            session.printer.data("")?;
            session.printer.table(&view::table(kind, items.iter()))?;
        }
    }
    let conditions = status.get("conditions").and_then(Value::as_array);
    for condition in conditions.into_iter().flatten() {
        let part = |name: &str| condition.get(name).and_then(Value::as_str);
        let words = ["process", "condition", "reason", "detail"].map(part);
        let words: Vec<&str> = words.into_iter().flatten().collect();
        session.printer.data(&format!("! {}", words.join(": ")))?;
    }
    if let (Some(id), Some(state)) = (text("/last_deploy/id"), text("/last_deploy/status")) {
        let kind = text("/last_deploy/kind").unwrap_or("deploy");
        session
            .printer
            .data(&format!("last {kind}: {id} {state}"))?;
    }
    if let Some(reason) = text("/last_error/reason") {
        let detail = text("/last_error/detail").unwrap_or_default();
        session
            .printer
            .data(&format!("last error: {reason} {detail}"))?;
    }
    Ok(ExitCode::Success)
}
