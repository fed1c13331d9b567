//! Anthropic's Messages API.
//!
//! Request: `model`, `max_tokens`, `stream`, `system[]`, `tools[]` (`name`,
//! `description`, `input_schema`), `messages[]` with blocks `text`, `thinking`
//! (`thinking`, `signature`), `redacted_thinking` (`data`), `tool_use` (`id`,
//! `name`, `input`), `tool_result` (`tool_use_id`, `content`, `is_error`);
//! `cache_control.type` on up to four blocks; `thinking.type|budget_tokens`,
//! `output_config.effort`; header `anthropic-version`.
//! Answer: the events of `reader` beside.

mod reader;

use fluffy_contract::model::{Effort, Message, Opaque, Part, Role, Turn};
use fluffy_contract::tool::ToolOutcome;
use serde_json::{Value, json};

use super::chat::{effort_name, text_of};
use super::names::ToolNames;
use super::{Wire, arguments_of, json::set};

pub(super) use reader::Reader;

/// The smallest budget for thinking that is accepted.
const MIN_BUDGET: u32 = 1024;

/// The request's body.
pub(super) fn encode(turn: &Turn, names: &ToolNames) -> Value {
    let mut messages = messages(turn, names);
    // What was the end of the last request is read from the cache, what is
    // the end of this one is written for the next.
    for message in messages
        .iter_mut()
        .rev()
        .filter(|m| m.role == "user")
        .take(2)
    {
        if let Some(block) = message.blocks.last_mut() {
            mark(block);
        }
    }
    let messages: Vec<Value> = (messages.into_iter())
        .map(|message| json!({"role": message.role, "content": message.blocks}))
        .collect();
    let mut body = json!({
        "model": turn.model,
        "max_tokens": turn.max_output_tokens,
        "stream": true,
        "messages": messages,
    });
    let system = turn
        .messages
        .iter()
        .filter(|message| message.role == Role::System);
    let mut system: Vec<Value> = system.filter_map(|m| text_block(&text_of(m))).collect();
    if let Some(last) = system.last_mut() {
        mark(last);
        set(&mut body, "system", system);
    }
    let tools = turn.tools.iter().map(|tool| {
        json!({
            "name": names.on_wire(&tool.name),
            "description": tool.summary,
            "input_schema": tool.parameters,
        })
    });
    let mut tools: Vec<Value> = tools.collect();
    if let Some(last) = tools.last_mut() {
        mark(last);
        set(&mut body, "tools", tools);
    }
    if let Some(effort) = turn.effort {
        think(&mut body, turn, effort);
    }
    body
}

struct WireMessage {
    role: &'static str,
    blocks: Vec<Value>,
}

/// Messages with turns taken in alternation, as the format wants them.
fn messages(turn: &Turn, names: &ToolNames) -> Vec<WireMessage> {
    let mut all: Vec<WireMessage> = Vec::new();
    for message in turn.messages.iter().filter(|m| m.role != Role::System) {
        let role = match message.role {
            Role::Assistant => "assistant",
            Role::User | Role::Tool | Role::System => "user",
        };
        let blocks: Vec<Value> = message
            .parts
            .iter()
            .filter_map(|p| block(p, names, &turn.model))
            .collect();
        if blocks.is_empty() {
            continue;
        }
        match all.last_mut() {
            Some(last) if last.role == role => last.blocks.extend(blocks),
            _ => all.push(WireMessage { role, blocks }),
        }
    }
    for message in all.iter_mut().filter(|message| message.role == "user") {
        // Results must come before anything else that is said.
        message
            .blocks
            .sort_by_key(|block| block["type"] != "tool_result");
    }
    all
}

fn block(part: &Part, names: &ToolNames, model: &str) -> Option<Value> {
    match part {
        Part::Text { text, .. } => text_block(text),
        // Unsigned thoughts, and those of another model, are refused.
        Part::Reasoning { opaque, .. } => {
            let own = opaque.as_ref().filter(|opaque| is_own(opaque, model));
            own.map(|opaque| opaque.value.clone())
        }
        Part::ToolCall(call) => {
            let input = arguments_of(call);
            let name = names.on_wire(&call.name);
            Some(json!({"type": "tool_use", "id": id(&call.id), "name": name, "input": input}))
        }
        Part::ToolResult {
            call,
            content,
            outcome,
        } => Some(json!({
            "type": "tool_result",
            "tool_use_id": id(call),
            "content": content,
            "is_error": *outcome == ToolOutcome::Failed,
        })),
    }
}

/// An id as the format allows it: other providers' may have more characters.
fn id(id: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    id.chars()
        .map(|c| if allowed(c) { c } else { '_' })
        .collect()
}

fn text_block(text: &str) -> Option<Value> {
    // Blocks of nothing but space are refused.
    (!text.trim().is_empty()).then(|| json!({"type": "text", "text": text}))
}

/// Makes the end of a block the end of what is cached.
fn mark(block: &mut Value) {
    set(block, "cache_control", json!({"type": "ephemeral"}));
}

fn think(body: &mut Value, turn: &Turn, effort: Effort) {
    if is_adaptive(&turn.model) {
        set(
            body,
            "thinking",
            json!({"type": "adaptive", "display": "summarized"}),
        );
        set(
            body,
            "output_config",
            json!({"effort": effort_name(effort)}),
        );
        return;
    }
    let wanted = match effort {
        Effort::Low => 2 * MIN_BUDGET,
        Effort::Medium => 8 * MIN_BUDGET,
        Effort::High => 16 * MIN_BUDGET,
    };
    let budget = wanted.min(turn.max_output_tokens.saturating_sub(MIN_BUDGET));
    if budget >= MIN_BUDGET && may_begin_to_think(turn) {
        set(
            body,
            "thinking",
            json!({"type": "enabled", "budget_tokens": budget}),
        );
    }
}

/// Whether a model sets its own budget: all from 4.6 on, by their names.
fn is_adaptive(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model);
    let mut parts = name
        .split(['-', '@'])
        .skip_while(|part| part.parse::<u32>().is_err());
    let number = |part: Option<&str>| part.and_then(|part| part.parse::<u32>().ok());
    let Some(major) = number(parts.next()) else {
        return true;
    };
    // A date after the first number is no second number.
    let minor = number(parts.next())
        .filter(|minor| *minor < 100)
        .unwrap_or(0);
    (major, minor) >= (4, 6)
}

/// Older models refuse to think in the middle of calls that began without.
fn may_begin_to_think(turn: &Turn) -> bool {
    let since_user = turn
        .messages
        .iter()
        .rev()
        .take_while(|m| m.role != Role::User);
    let answers = since_user.filter(|message| message.role == Role::Assistant);
    answers
        .into_iter()
        .all(|message| begins_with_thought(message, &turn.model))
}

fn begins_with_thought(message: &Message, model: &str) -> bool {
    matches!(message.parts.first(), Some(Part::Reasoning { opaque: Some(opaque), .. })
        if is_own(opaque, model))
}

/// Whether this model signed it. Sessions of older versions do not say who did.
fn is_own(opaque: &Opaque, model: &str) -> bool {
    let known = opaque.model.as_str();
    opaque.wire == Wire::Anthropic.name() && (known.is_empty() || known == model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_are_told_by_name() {
        for model in [
            "claude-opus-4-6",
            "claude-sonnet-5",
            "claude-opus-4-7-20270101",
            "claude-x",
        ] {
            assert!(is_adaptive(model), "{model}");
        }
        for model in [
            "claude-3-5-haiku-20241022",
            "claude-sonnet-4-20250514",
            "claude-haiku-4-5",
            "claude-opus-4-1@20250805",
        ] {
            assert!(!is_adaptive(model), "{model}");
        }
    }
}
