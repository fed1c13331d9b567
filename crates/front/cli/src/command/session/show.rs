//! `fluffy session show`: a session as it was, from the ledger alone.

use fluffy_contract::model::{Message, Part, Role};
use fluffy_contract::tool::ToolOutcome;
use fluffy_kernel::session::Session as Recorded;
use fluffy_report::{ExitCode, Text, Tone, sanitize_line};
use serde_json::json;

use super::{find, list, unreadable, with_store};
use crate::command::Outcome;
use crate::command::agent::show::ending;
use crate::command::agent::show::words::{counted, money, number, tokens};
use crate::session::Session;

/// How much of a result or of arguments is shown.
const SHORT: usize = 160;

/// Prints what happened.
pub(super) fn run(session: &Session, prefix: &str) -> Outcome {
    let recorded = with_store(session, |store| {
        let id = find(store, prefix)?;
        store.load(id).map_err(|error| unreadable(&error).into())
    })?;
    if session.json() {
        session.printer.json(&value(&recorded))?;
        return Ok(ExitCode::Success);
    }
    let width = session.printer.width().unwrap_or(usize::MAX);
    let mut text = head(&recorded);
    for message in &recorded.messages {
        said(&mut text, message, width);
    }
    if let Some(ended) = &recorded.ended {
        text.plain("\n");
        text.append(ending(ended, &recorded.spent, width));
    }
    session.printer.text(&text)?;
    Ok(ExitCode::Success)
}

fn value(recorded: &Recorded) -> serde_json::Value {
    json!({
        "session": recorded.id,
        "started": recorded.started,
        "messages": recorded.messages,
        "pins": recorded.pins,
        "spent": recorded.spent,
        "turns": recorded.turns,
        "refused": recorded.refused,
        "ended": recorded.ended,
    })
}

fn head(recorded: &Recorded) -> Text {
    let started = &recorded.started;
    let (tone, word) = list::result(recorded.ended.as_ref().map(|ended| &ended.result));
    let cost = recorded.spent.cost_micros.map(money);
    let mut text = Text::new();
    text.add(Tone::Strong, &recorded.id.to_string()).plain("  ");
    text.add(tone, word).plain("\n");
    text.plain(&format!(
        "  began {}, mode {}, {}\n  {}, {} tokens, {}\n",
        started.moment,
        started.mode,
        sanitize_line(&started.model),
        counted(recorded.turns, "turn", "turns"),
        number(tokens(&recorded.spent)),
        cost.as_deref().unwrap_or("price not known"),
    ));
    if let Some(from) = started.forked_from {
        text.plain(&format!("  forked from {from}\n"));
    }
    for pin in &recorded.pins {
        text.plain(&format!("  pinned: {}\n", sanitize_line(pin)));
    }
    text
}

fn said(text: &mut Text, message: &Message, width: usize) {
    for part in &message.parts {
        match part {
            Part::Text { text: said, .. } if said.trim().is_empty() => {}
            Part::Text { text: said, .. } => {
                let who = match message.role {
                    Role::User => "> ",
                    Role::System | Role::Assistant | Role::Tool => "",
                };
                text.plain("\n");
                text.paragraph(Tone::Plain, &format!("{who}{}", said.trim()), (0, width));
            }
            Part::Reasoning { .. } => {}
            Part::ToolCall(call) => {
                let arguments = short(&call.arguments.to_string());
                text.add(Tone::Strong, &format!("  {}", sanitize_line(&call.name)));
                text.plain(&format!(" {arguments}\n"));
            }
            Part::ToolResult {
                content, outcome, ..
            } => {
                let (tone, word) = match outcome {
                    ToolOutcome::Done => (Tone::Good, "done"),
                    ToolOutcome::Failed => (Tone::Bad, "failed"),
                };
                let first = content.lines().next().unwrap_or_default();
                text.plain("    ").add(tone, word);
                text.add(Tone::Dim, &format!("  {}\n", short(first)));
            }
        }
    }
}

fn short(text: &str) -> String {
    let safe = sanitize_line(text);
    let mut cut = Text::new();
    cut.plain(&safe);
    cut.cut(SHORT).render(fluffy_report::Styling::Plain)
}
