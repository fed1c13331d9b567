//! OpenAI's Chat Completions, as the vendor and as imitators write it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Format, is_tool_name, list, pieces, set, text};
use crate::conversation::{Answered, Called, Conversation, Said, Speaker, dotted, on_the_wire};
use crate::reply::{Piece, Quirk, Reply, Stop, in_order};

pub(super) fn read(body: &Value) -> Result<Conversation, String> {
    if body["stream"] != true {
        return Err("this server only streams".to_owned());
    }
    let mut conversation = Conversation {
        format: Format::Chat,
        model: text(body, "model").to_owned(),
        system: String::new(),
        said: Vec::new(),
        tools: tools(body)?,
        number: 0,
    };
    if body["max_tokens"].is_null() && body["max_completion_tokens"].is_null() {
        return Err("no limit of tokens was given".to_owned());
    }
    let mut open: BTreeSet<String> = BTreeSet::new();
    for message in list(body, "messages") {
        let role = text(message, "role");
        if role != "tool" && !open.is_empty() {
            return Err(format!(
                "tool_call_ids did not have response messages: {open:?}"
            ));
        }
        let content = content(message);
        match role {
            "system" | "developer" => conversation.system.push_str(&content),
            "user" => conversation.said.push(Said {
                text: content,
                ..Said::new(Speaker::User)
            }),
            "assistant" => {
                let calls: Vec<Called> = list(message, "tool_calls")
                    .iter()
                    .map(called)
                    .collect::<Result<_, _>>()?;
                open.extend(calls.iter().map(|call| call.id.clone()));
                conversation.said.push(Said {
                    text: content,
                    calls,
                    ..Said::new(Speaker::Model)
                });
            }
            "tool" => {
                let id = text(message, "tool_call_id").to_owned();
                if !open.remove(&id) {
                    return Err(format!("`{id}` answers no call before it"));
                }
                conversation.said.push(Said {
                    results: vec![Answered { id, content }],
                    ..Said::new(Speaker::User)
                });
            }
            other => return Err(format!("unknown role `{other}`")),
        }
    }
    match conversation.said.is_empty() {
        true => Err("no messages".to_owned()),
        false => Ok(conversation),
    }
}

fn tools(body: &Value) -> Result<Vec<String>, String> {
    let names = list(body, "tools")
        .iter()
        .map(|tool| text(&tool["function"], "name"));
    let names: Vec<&str> = names.collect();
    match names.iter().find(|name| !is_tool_name(name)) {
        Some(wrong) => Err(format!("`{wrong}` does not match ^[a-zA-Z0-9_-]{{1,64}}$")),
        None => Ok(names.into_iter().map(dotted).collect()),
    }
}

fn content(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(|part| text(part, "text")).collect(),
        _ => String::new(),
    }
}

fn called(call: &Value) -> Result<Called, String> {
    let arguments = text(&call["function"], "arguments");
    let arguments: Value = serde_json::from_str(arguments)
        .map_err(|_| format!("arguments are no JSON: `{arguments}`"))?;
    if !arguments.is_object() {
        return Err("arguments are no object".to_owned());
    }
    Ok(Called {
        id: text(call, "id").to_owned(),
        name: dotted(text(&call["function"], "name")),
        arguments,
    })
}

pub(super) fn events(model: &str, reply: &Reply) -> Vec<String> {
    let mut deltas = vec![json!({"role": "assistant", "content": "", "refusal": null})];
    let mut calls = 0;
    for piece in &reply.pieces {
        match piece {
            Piece::Text(all) => {
                deltas.extend(
                    pieces(all)
                        .into_iter()
                        .map(|piece| json!({"content": piece})),
                );
            }
            Piece::Reasoning(all) => {
                let field = match reply.has(Quirk::ReasoningField) {
                    true => "reasoning",
                    false => "reasoning_content",
                };
                deltas.extend(pieces(all).into_iter().map(|piece| json!({field: piece})));
            }
            Piece::Call { name, arguments } => {
                deltas.extend(call_deltas(reply, calls, name, arguments));
                calls += 1;
            }
        }
    }
    let reason = match reply.stop {
        Stop::Length => "length",
        Stop::Refused => "content_filter",
        Stop::Natural if calls > 0 && !reply.has(Quirk::StopAfterCalls) => "tool_calls",
        Stop::Natural => "stop",
    };
    let choice = |delta: Value, reason: Value| json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason}]);
    let mut choices: Vec<Value> = deltas
        .into_iter()
        .map(|delta| choice(delta, Value::Null))
        .collect();
    choices.push(choice(json!({}), reason.into()));
    let mut events: Vec<String> = choices
        .into_iter()
        .map(|choices| event(model, choices, &Value::Null))
        .collect();
    if let Some(tokens) = reply.tokens {
        let usage = json!({
            "prompt_tokens": tokens.input,
            "completion_tokens": tokens.output,
            "total_tokens": tokens.input + tokens.output,
            "prompt_tokens_details": {"cached_tokens": tokens.cached},
            "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
        });
        events.push(event(model, json!([]), &usage));
    }
    if !reply.has(Quirk::NoDone) {
        events.push("data: [DONE]\n\n".to_owned());
    }
    events
}

fn call_deltas(reply: &Reply, number: usize, name: &str, arguments: &Value) -> Vec<Value> {
    let (first, more) = match (
        reply.has(Quirk::ObjectArguments),
        reply.has(Quirk::WholeArguments),
    ) {
        (true, _) => (arguments.clone(), vec![]),
        (false, true) => (arguments.to_string().into(), vec![]),
        (false, false) => ("".into(), pieces(&arguments.to_string())),
    };
    let function = json!({"name": on_the_wire(name), "arguments": first});
    let mut head = json!({"type": "function", "function": function});
    if !reply.has(Quirk::NoIds) {
        set(
            &mut head,
            "id",
            format!("call_{}_{number}", fingerprint(reply)),
        );
    }
    let index = match (reply.has(Quirk::NoIndex), reply.has(Quirk::IndexAlwaysZero)) {
        (true, _) => None,
        (false, true) => Some(0),
        (false, false) => Some(number),
    };
    let with_index = |mut call: Value| {
        if let Some(index) = index {
            set(&mut call, "index", index);
        }
        json!({"tool_calls": [call]})
    };
    let more = more.into_iter();
    let more = more.map(|piece| with_index(json!({"function": {"arguments": piece}})));
    std::iter::once(with_index(head)).chain(more).collect()
}

/// Tells the replies of a script apart, so that ids are not used twice.
pub(super) fn fingerprint(reply: &Reply) -> String {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    format!("{:?}", in_order(reply.clone())).hash(&mut hasher);
    format!("{:08x}", hasher.finish() & 0xffff_ffff)
}

fn event(model: &str, choices: Value, usage: &Value) -> String {
    let chunk = json!({
        "id": "chatcmpl-local",
        "object": "chat.completion.chunk",
        "created": 1_763_000_000,
        "model": model,
        "service_tier": "default",
        "system_fingerprint": "fp_local",
        "choices": choices,
        "usage": usage,
    });
    format!("data: {chunk}\n\n")
}

pub(super) fn error_body(status: u16, message: &str) -> Value {
    let (kind, code) = match status {
        401 => ("invalid_request_error", json!("invalid_api_key")),
        404 => ("invalid_request_error", json!("model_not_found")),
        429 => ("requests", json!("rate_limit_exceeded")),
        500.. => ("server_error", Value::Null),
        _ => ("invalid_request_error", Value::Null),
    };
    json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
}
