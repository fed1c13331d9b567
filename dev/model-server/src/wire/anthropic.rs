//! Anthropic's Messages API.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::chat::fingerprint;
use super::{Format, is_tool_name, list, pieces, set, text};
use crate::conversation::{Answered, Called, Conversation, Said, Speaker, dotted, on_the_wire};
use crate::reply::{Piece, Reply, Stop};

/// The most blocks that may be marked for the cache.
const MAX_MARKS: usize = 4;

pub(super) fn read(body: &Value) -> Result<Conversation, String> {
    if body["stream"] != true {
        return Err("this server only streams".to_owned());
    }
    if body["max_tokens"].as_u64().is_none_or(|limit| limit == 0) {
        return Err("max_tokens: Field required".to_owned());
    }
    if body.to_string().matches("\"cache_control\"").count() > MAX_MARKS {
        return Err("A maximum of 4 blocks with cache_control may be provided".to_owned());
    }
    let system = match &body["system"] {
        Value::String(text) => text.clone(),
        blocks => blocks
            .as_array()
            .map_or(&[][..], Vec::as_slice)
            .iter()
            .map(|b| text(b, "text"))
            .collect(),
    };
    let tools: Vec<&str> = list(body, "tools")
        .iter()
        .map(|tool| text(tool, "name"))
        .collect();
    if let Some(wrong) = tools.iter().find(|name| !is_tool_name(name)) {
        return Err(format!(
            "tools: `{wrong}` should match '^[a-zA-Z0-9_-]{{1,64}}$'"
        ));
    }
    let mut conversation = Conversation {
        format: Format::Anthropic,
        model: text(body, "model").to_owned(),
        system,
        said: Vec::new(),
        tools: tools.into_iter().map(dotted).collect(),
        number: 0,
    };
    let mut open: BTreeSet<String> = BTreeSet::new();
    for message in list(body, "messages") {
        let said = read_message(message, &mut open)?;
        conversation.said.push(said);
    }
    if !open.is_empty() {
        return Err(format!(
            "tool_use ids were found without tool_result blocks: {open:?}"
        ));
    }
    match conversation.said.first().map(|said| said.by) {
        Some(Speaker::User) => Ok(conversation),
        Some(Speaker::Model) => Err("first message must use the user role".to_owned()),
        None => Err("messages: at least one message is required".to_owned()),
    }
}

fn read_message(message: &Value, open: &mut BTreeSet<String>) -> Result<Said, String> {
    let by = match text(message, "role") {
        "user" => Speaker::User,
        "assistant" => Speaker::Model,
        other => return Err(format!("unexpected role `{other}`")),
    };
    let mut said = Said::new(by);
    if let Some(text) = message["content"].as_str() {
        said.text = text.to_owned();
        return Ok(said);
    }
    let mut has_text = false;
    for block in list(message, "content") {
        match text(block, "type") {
            "text" if text(block, "text").trim().is_empty() => {
                return Err("text content blocks must be non-empty".to_owned());
            }
            "text" => {
                has_text = true;
                said.text.push_str(text(block, "text"));
            }
            "thinking" if !text(block, "signature").starts_with("signed:") => {
                return Err("Invalid `signature` in `thinking` block".to_owned());
            }
            "thinking" | "redacted_thinking" => {}
            "tool_use" => {
                let id = text(block, "id").to_owned();
                if !block["input"].is_object() {
                    return Err("tool_use.input: Input should be a valid dictionary".to_owned());
                }
                open.insert(id.clone());
                said.calls.push(Called {
                    id,
                    name: dotted(text(block, "name")),
                    arguments: block["input"].clone(),
                });
            }
            "tool_result" => {
                let id = text(block, "tool_use_id").to_owned();
                if has_text || !open.remove(&id) {
                    return Err(format!("unexpected `tool_use_id` found: {id}"));
                }
                let content = text(block, "content").to_owned();
                said.results.push(Answered { id, content });
            }
            other => return Err(format!("unexpected block `{other}`")),
        }
    }
    if by == Speaker::User && !open.is_empty() {
        return Err(format!(
            "tool_use ids were found without tool_result blocks: {open:?}"
        ));
    }
    Ok(said)
}

pub(super) fn events(model: &str, reply: &Reply) -> Vec<String> {
    let mut events = vec![start(model, reply)];
    for (index, piece) in reply.pieces.iter().enumerate() {
        let (block, deltas) = match piece {
            Piece::Text(all) => {
                let deltas = pieces(all).into_iter();
                let deltas = deltas.map(|piece| json!({"type": "text_delta", "text": piece}));
                (json!({"type": "text", "text": ""}), deltas.collect())
            }
            Piece::Reasoning(all) => {
                let deltas = pieces(all).into_iter();
                let deltas = deltas.map(|p| json!({"type": "thinking_delta", "thinking": p}));
                let signature = format!("signed:{index}");
                let last = json!({"type": "signature_delta", "signature": signature});
                let deltas: Vec<Value> = deltas.chain([last]).collect();
                (
                    json!({"type": "thinking", "thinking": "", "signature": ""}),
                    deltas,
                )
            }
            Piece::Call { name, arguments } => {
                let id = format!("toolu_{}_{index}", fingerprint(reply));
                let name = on_the_wire(name);
                let all = pieces(&arguments.to_string()).into_iter();
                // The vendor begins with an empty piece.
                let all = std::iter::once(String::new()).chain(all);
                let deltas = all.map(|p| json!({"type": "input_json_delta", "partial_json": p}));
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                (block, deltas.collect::<Vec<_>>())
            }
        };
        events.push(event(
            "content_block_start",
            json!({"index": index, "content_block": block}),
        ));
        let deltas = deltas.into_iter();
        let deltas =
            deltas.map(|d| event("content_block_delta", json!({"index": index, "delta": d})));
        events.extend(deltas);
        events.push(event("content_block_stop", json!({"index": index})));
    }
    let reason = match reply.stop {
        Stop::Length => "max_tokens",
        Stop::Refused => "refusal",
        Stop::Natural if reply.has_calls() => "tool_use",
        Stop::Natural => "end_turn",
    };
    let output = reply.tokens.map_or(0, |tokens| tokens.output);
    let reasoning = reply.tokens.map_or(0, |tokens| tokens.reasoning);
    events.push(event(
        "message_delta",
        json!({
            "delta": {"stop_reason": reason, "stop_sequence": null},
            "usage": {
                "output_tokens": output,
                "output_tokens_details": {"thinking_tokens": reasoning},
            },
        }),
    ));
    events.push(event("message_stop", json!({})));
    events
}

fn start(model: &str, reply: &Reply) -> String {
    let tokens = reply.tokens.unwrap_or_default();
    let plain = tokens
        .input
        .saturating_sub(tokens.cached + tokens.cache_write);
    event(
        "message_start",
        json!({"message": {
            "id": "msg_local",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": {
                "input_tokens": plain,
                "cache_creation_input_tokens": tokens.cache_write,
                "cache_read_input_tokens": tokens.cached,
                "output_tokens": 1,
            },
        }}),
    )
}

fn event(kind: &str, mut event: Value) -> String {
    set(&mut event, "type", kind);
    format!("event: {kind}\ndata: {event}\n\n")
}

pub(super) fn error_body(status: u16, message: &str) -> Value {
    let kind = match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_local"})
}
