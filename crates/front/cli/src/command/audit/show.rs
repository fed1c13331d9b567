//! Events as people read them: one line each.

use fluffy_ledger::Event;
use fluffy_report::{Cell, Column, Table, Tone};
use serde_json::{Value, json};

/// An empty table of events.
pub(crate) fn table() -> Table {
    Table::new([
        Column::new("SEQ").right().whole(),
        Column::new("TIME").whole(),
        Column::new("WHO"),
        Column::new("EVENT").whole(),
        Column::new("WHAT"),
    ])
}

/// One event as a row.
pub(crate) fn row(event: &Event) -> [Cell; 5] {
    let time = event.occurred_at.to_string();
    let time = time.get(..19).unwrap_or(&time).replace('T', " ");
    let (what, tone) = summary(event);
    [
        Cell::new(event.seq.to_string()),
        Cell::new(time),
        Cell::new(event.actor.id.clone()),
        Cell::new(event.event_type.clone()),
        Cell::new(what).tone(tone),
    ]
}

/// One event as one line of text, for a stream that has no table.
pub(crate) fn line(event: &Event) -> String {
    let (what, _) = summary(event);
    let time = event.occurred_at.to_string();
    format!(
        "{} {time} {} {} {what}",
        event.seq, event.actor.id, event.event_type
    )
}

/// The whole event as JSON, with its hashes.
pub(crate) fn json(event: &Event) -> Value {
    let payload = event.payload.value().unwrap_or(Value::Null);
    json!({
        "seq": event.seq,
        "domain": event.domain.as_str(),
        "aggregate": {"type": event.aggregate.kind, "id": event.aggregate.id,
            "version": event.aggregate_version},
        "type": event.event_type,
        "version": event.event_version,
        "occurred_at": event.occurred_at,
        "actor": {"type": event.actor.kind.as_str(), "id": event.actor.id,
            "on_behalf_of": event.actor.on_behalf_of},
        "request_id": event.request_id,
        "causation_seq": event.causation_seq,
        "decision_seq": event.decision_seq,
        "payload": payload,
        "prev_hash": event.prev_hash,
        "hash": event.hash,
    })
}

fn summary(event: &Event) -> (String, Tone) {
    let payload = event.payload.value().unwrap_or(Value::Null);
    let text = |pointer: &str| {
        payload
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    match event.event_type.as_str() {
        "policy.decision" => {
            let decision = text("/decision");
            let tone = match decision {
                "allow" => Tone::Good,
                "deny" => Tone::Bad,
                _ => Tone::Caution,
            };
            let request = "/record/request";
            let (action, resource) = (
                text(&format!("{request}/action")),
                text(&format!("{request}/resource")),
            );
            (format!("{decision} {action} {resource}"), tone)
        }
        "policy.update" => {
            let to = text("/to");
            let short = to.get(..12).unwrap_or(to);
            (format!("{} {short}", text("/outcome")), Tone::Plain)
        }
        "token.issued" => {
            let answers = payload.pointer("/claims/answers").and_then(Value::as_array);
            let rules: Vec<&str> = answers
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            (
                format!("{} answered {}", text("/approved_by"), rules.join(", ")),
                Tone::Plain,
            )
        }
        _ => (
            event.payload.as_str().chars().take(120).collect(),
            Tone::Plain,
        ),
    }
}
