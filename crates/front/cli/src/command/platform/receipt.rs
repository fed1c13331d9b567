//! What a write leaves a person with: what was done, where, and what is next.

use fluffy_api::Operation;
use fluffy_api::client::Answer;
use fluffy_report::{Cell, Column, ExitCode, Table, Tone, Verbosity};
use serde_json::{Value, json};

use super::ask::Asker;
use super::view::{self, SHARED, name};
use crate::args::platform::{derived, kind};
use crate::command::Outcome;
use crate::failure::Failure;

/// What is shown once and never again.
const SECRETS: &[&str] = &["secret", "client_secret", "invite_code"];

/// What whoever joins needs beside it.
const BESIDE: &[&str] = &["server", "ca_pin"];
/// Whether a write waits for a person instead of having been done.
pub(crate) fn is_parked(answer: &Answer) -> bool {
    answer.value.get("approval_id").is_some()
}

/// The receipt of a write; one that waits for a person ends with 8.
pub(crate) fn show(
    asker: &Asker<'_>,
    operation: Operation,
    answer: &Answer,
    changed: &[String],
) -> Outcome {
    let session = asker.session;
    let parked = answer.value.get("approval_id").and_then(Value::as_str);
    let exit = match parked {
        Some(_) => ExitCode::AwaitingApproval,
        None => ExitCode::Success,
    };
    if session.json() {
        let mut document = view::document(&document_kind(operation, answer), &answer.value);
        if let Some(fields) = document.as_object_mut() {
            let receipt = to_json(asker, operation, answer, changed);
            fields.insert("receipt".to_owned(), receipt);
        }
        session.printer.json(&document)?;
        return Ok(exit);
    }
    if session.printer.verbosity() == Verbosity::Quiet {
        let own = name(&answer.value);
        session.printer.data(parked.unwrap_or(&own))?;
        return Ok(exit);
    }
    let spec = operation.spec();
    let mut rows: Vec<(&str, String)> = Vec::new();
    let value = &answer.value;
    let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
    rows.push(("id", name(value).into_owned()));
    for field in ["name", "slug", "kind", "status", "message"] {
        rows.push((field, text(field).to_owned()));
    }
    if matches!(operation, Operation::AddMember | Operation::UpdateMember) {
        rows.push(("on", text("path").to_owned()));
    }
    rows.push(("changed", changed.join(", ")));
    rows.push(("target", target(asker, operation)));
    if value.pointer("/isolation/level") == Some(&json!("shared-kernel")) {
        rows.push(("isolation", SHARED.to_owned()));
    }
    let at = seq(answer).map(|seq| seq.to_string());
    rows.push(("seq", at.unwrap_or_default()));
    if let Some(approval) = parked {
        rows.push(("waits for", format!("approval {approval}")));
        rows.push(("until", text("expires_at").to_owned()));
        rows.push((
            "next",
            format!("fluffy approvals approve {approval}, by another person"),
        ));
    } else {
        rows.push(("next", next(operation, value)));
    }
    for field in SECRETS {
        if let Some(secret) = value.get(*field).and_then(Value::as_str) {
            rows.push((field, format!("{secret}   (shown once)")));
        }
    }
    if operation == Operation::CreateEnrollmentToken {
        for field in BESIDE {
            rows.push((field, text(field).to_owned()));
        }
    }
    let done = if parked.is_some() { "parked" } else { "done" };
    let title = format!("{done}: {}", spec.cli);
    let mut table = Table::new([Column::new(title).whole(), Column::new("").whole()]);
    for (name, text) in rows.into_iter().filter(|(_, text)| !text.is_empty()) {
        let tone = if text == SHARED {
            Tone::Bad
        } else {
            Tone::Plain
        };
        table.row([
            Cell::new(format!("  {name}")).tone(Tone::Dim),
            Cell::new(text).tone(tone),
        ]);
    }
    session.printer.table(&table)?;
    Ok(exit)
}

/// One line before something is waited for; with JSON the end says it all.
pub(crate) fn show_brief(
    asker: &Asker<'_>,
    operation: Operation,
    answer: &Answer,
) -> Result<(), Failure> {
    let session = asker.session;
    if session.json() {
        return Ok(());
    }
    let at = seq(answer).map(|seq| format!(", seq {seq}"));
    let at = at.unwrap_or_default();
    let shared = answer.value.pointer("/isolation/level") == Some(&json!("shared-kernel"));
    let tag = if shared {
        format!(", {SHARED}")
    } else {
        String::new()
    };
    // What is about the whole platform has no target.
    let target = match &*target(asker, operation) {
        "" => String::new(),
        target => format!(" on {target}"),
    };
    session.printer.note(&format!(
        "{}: {}{target}{at}{tag}",
        operation.spec().cli,
        name(&answer.value),
    ));
    Ok(())
}

fn document_kind(operation: Operation, answer: &Answer) -> String {
    match answer.status {
        202 if answer.value.get("approval_id").is_some() => "Parked".to_owned(),
        202 if answer.value.get("status_url").is_some() => "Receipt".to_owned(),
        _ => kind(operation),
    }
}

/// The receipt for programs: the same that people see.
pub(crate) fn to_json(
    asker: &Asker<'_>,
    operation: Operation,
    answer: &Answer,
    changed: &[String],
) -> Value {
    let value = &answer.value;
    let next = match value.get("approval_id").and_then(Value::as_str) {
        Some(approval) => format!("fluffy approvals approve {approval}"),
        None => next(operation, value),
    };
    let next: Vec<String> = [next].into_iter().filter(|it| !it.is_empty()).collect();
    json!({
        "operation": operation.spec().id,
        "seq": seq(answer),
        "request_id": answer.request_id,
        "ids": [name(value)],
        "target": target(asker, operation),
        "server": asker.target.server.to_string(),
        "changed": changed,
        "isolation": value.pointer("/isolation/level"),
        "next": next,
    })
}

fn target(asker: &Asker<'_>, operation: Operation) -> String {
    let named: Vec<&str> = operation.spec().path_params().collect();
    let parts = ["org", "app", "env"]
        .into_iter()
        .filter(|part| named.contains(part));
    asker.target.shown(&parts.collect::<Vec<_>>())
}

/// What one would look at next.
fn next(operation: Operation, value: &Value) -> String {
    let spec = operation.spec();
    let noun = spec.cli.split(' ').next().unwrap_or_default();
    let describe = format!("{noun} describe");
    let gone = value.get("deleted").is_some();
    let known = derived().iter().any(|(words, _)| *words == describe);
    match noun {
        _ if gone => format!("fluffy {noun} list"),
        "rollback" | "scale" | "deploy" => "fluffy status".to_owned(),
        _ if known => format!("fluffy {describe} {}", name(value)),
        _ => String::new(),
    }
}

/// The last event of a write.
fn seq(answer: &Answer) -> Option<u64> {
    answer.seen.map(|seen| seen.seq)
}
