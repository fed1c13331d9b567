//! Google's `streamGenerateContent`, with `alt=sse`.
//!
//! Request: `contents[]` (`role` is `user` or `model`, `parts[]` with `text`,
//! `functionCall.name|args|id`, `functionResponse.name|id|response`,
//! `thoughtSignature`), `systemInstruction`, `tools[].functionDeclarations[]`
//! with `parametersJsonSchema`, `generationConfig.maxOutputTokens` and
//! `.thinkingConfig.includeThoughts|thinkingLevel|thinkingBudget`.
//! Answer: `candidates[0].content.parts[]` (`thought`), `finishReason`,
//! `promptFeedback.blockReason`, `usageMetadata`; there is no last event.

mod reader;

use std::collections::BTreeMap;

use fluffy_contract::model::{Effort, Opaque, Part, Role, ToolCall, Turn};
use fluffy_contract::tool::ToolOutcome;
use serde_json::{Value, json};

use super::chat::text_of;
use super::names::ToolNames;
use super::{Wire, arguments_of, json::set};

pub(super) use reader::Reader;

/// Stands where a call that another model made has no signature; documented
/// for histories that come from elsewhere.
const FOREIGN_SIGNATURE: &str = "skip_thought_signature_validator";

/// The request's path and query.
pub(super) fn path(model: &str) -> String {
    let model = model.strip_prefix("models/").unwrap_or(model);
    format!("/v1beta/models/{model}:streamGenerateContent?alt=sse")
}

/// The request's body.
pub(super) fn encode(turn: &Turn, names: &ToolNames) -> Value {
    let mut config = json!({"maxOutputTokens": turn.max_output_tokens});
    if let Some(effort) = turn.effort {
        set(&mut config, "thinkingConfig", thinking(&turn.model, effort));
    }
    let mut body = json!({
        "contents": contents(turn, names),
        "generationConfig": config,
    });
    let system = turn
        .messages
        .iter()
        .filter(|message| message.role == Role::System);
    let system: Vec<Value> = system
        .map(|message| json!({"text": text_of(message)}))
        .collect();
    if !system.is_empty() {
        set(&mut body, "systemInstruction", json!({"parts": system}));
    }
    if !turn.tools.is_empty() {
        let functions = turn.tools.iter().map(|tool| {
            json!({
                "name": names.on_wire(&tool.name),
                "description": tool.summary,
                "parametersJsonSchema": tool.parameters,
            })
        });
        set(
            &mut body,
            "tools",
            json!([{"functionDeclarations": functions.collect::<Vec<_>>()}]),
        );
    }
    body
}

fn thinking(model: &str, effort: Effort) -> Value {
    // Budgets were replaced by levels with the third generation.
    let is_older = ["gemini-2", "gemini-1"]
        .iter()
        .any(|name| model.contains(name));
    match (is_older, effort) {
        (true, Effort::Low) => json!({"includeThoughts": true, "thinkingBudget": 1024}),
        (true, Effort::Medium) => json!({"includeThoughts": true, "thinkingBudget": 8192}),
        (true, Effort::High) => json!({"includeThoughts": true, "thinkingBudget": -1}),
        (false, Effort::Low) => json!({"includeThoughts": true, "thinkingLevel": "LOW"}),
        (false, Effort::Medium) => json!({"includeThoughts": true, "thinkingLevel": "MEDIUM"}),
        (false, Effort::High) => json!({"includeThoughts": true, "thinkingLevel": "HIGH"}),
    }
}

fn contents(turn: &Turn, names: &ToolNames) -> Vec<Value> {
    let all_parts = turn.messages.iter().flat_map(|message| &message.parts);
    let calls: BTreeMap<&str, &ToolCall> = all_parts
        .filter_map(|part| match part {
            Part::ToolCall(call) => Some((call.id.as_str(), call)),
            Part::Text { .. } | Part::Reasoning { .. } | Part::ToolResult { .. } => None,
        })
        .collect();
    let mut contents: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in turn.messages.iter().filter(|m| m.role != Role::System) {
        let role = match message.role {
            Role::Assistant => "model",
            Role::User | Role::Tool | Role::System => "user",
        };
        let mut parts: Vec<Value> = (message.parts.iter())
            .filter_map(|p| part(p, &calls, names))
            .collect();
        sign_foreign(&mut parts);
        match contents.last_mut() {
            _ if parts.is_empty() => {}
            Some((last, more)) if *last == role => more.extend(parts),
            _ => contents.push((role, parts)),
        }
    }
    let value = |(role, parts)| json!({"role": role, "parts": parts});
    contents.into_iter().map(value).collect()
}

fn part(part: &Part, calls: &BTreeMap<&str, &ToolCall>, names: &ToolNames) -> Option<Value> {
    match part {
        Part::Text { text, opaque } => {
            let signature = signature(opaque.as_ref());
            if text.is_empty() && signature.is_none() {
                return None;
            }
            Some(signed(json!({"text": text}), signature))
        }
        // Thoughts are not sent back, only what signs them.
        Part::Reasoning { opaque, .. } => {
            let signature = signature(opaque.as_ref())?;
            Some(signed(
                json!({"text": "", "thought": true}),
                Some(signature),
            ))
        }
        Part::ToolCall(call) => {
            let mut function =
                json!({"name": names.on_wire(&call.name), "args": arguments_of(call)});
            if let Some(id) = own_id(call) {
                set(&mut function, "id", id.clone());
            }
            let value = json!({"functionCall": function});
            Some(signed(value, signature(call.opaque.as_ref())))
        }
        Part::ToolResult {
            call,
            content,
            outcome,
        } => {
            let call = calls.get(call.as_str())?;
            let key = match outcome {
                ToolOutcome::Done => "output",
                ToolOutcome::Failed => "error",
            };
            let name = names.on_wire(&call.name);
            let mut function = json!({"name": name, "response": {key: content}});
            if let Some(id) = own_id(call) {
                set(&mut function, "id", id.clone());
            }
            Some(json!({"functionResponse": function}))
        }
    }
}

fn own(opaque: Option<&Opaque>) -> Option<&Value> {
    let own = opaque.filter(|opaque| opaque.wire == Wire::Gemini.name());
    own.map(|opaque| &opaque.value)
}

fn signature(opaque: Option<&Opaque>) -> Option<&Value> {
    own(opaque).and_then(|value| value.get("thoughtSignature"))
}

/// The id it gave to a call; ids that we made up mean nothing there.
fn own_id(call: &ToolCall) -> Option<&Value> {
    own(call.opaque.as_ref()).and_then(|value| value.get("id"))
}

fn signed(mut part: Value, signature: Option<&Value>) -> Value {
    if let Some(signature) = signature {
        set(&mut part, "thoughtSignature", signature.clone());
    }
    part
}

/// The first of parallel calls carries the signature; if none has one, the
/// calls were made by another model.
fn sign_foreign(parts: &mut [Value]) {
    let is_call = |part: &Value| part.get("functionCall").is_some();
    let is_signed = |part: &Value| part.get("thoughtSignature").is_some();
    if parts.iter().any(|part| is_call(part) && is_signed(part)) {
        return;
    }
    if let Some(first) = parts.iter_mut().find(|part| is_call(part)) {
        set(first, "thoughtSignature", FOREIGN_SIGNATURE);
    }
}
