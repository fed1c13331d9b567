//! Google's `streamGenerateContent`.

use serde_json::{Value, json};

use super::chat::fingerprint;
use super::{Format, is_tool_name, list, pieces, set, text};
use crate::conversation::{Answered, Called, Conversation, Said, Speaker, dotted, on_the_wire};
use crate::reply::{Piece, Reply, Stop};

pub(super) fn read(path: &str, body: &Value) -> Result<Conversation, String> {
    if !path.contains("alt=sse") {
        return Err("this server only streams as events".to_owned());
    }
    let model = path
        .rsplit('/')
        .next()
        .and_then(|last| last.split(':').next());
    let parts = list(&body["systemInstruction"], "parts").iter();
    let functions = list(body, "tools")
        .iter()
        .flat_map(|tool| list(tool, "functionDeclarations"));
    let names: Vec<&str> = functions.map(|function| text(function, "name")).collect();
    if let Some(wrong) = names.iter().find(|name| !is_tool_name(name)) {
        return Err(format!("Invalid function name `{wrong}`"));
    }
    let mut conversation = Conversation {
        format: Format::Gemini,
        model: model.unwrap_or_default().to_owned(),
        system: parts.map(|part| text(part, "text")).collect(),
        said: Vec::new(),
        tools: names.into_iter().map(dotted).collect(),
        number: 0,
    };
    for content in list(body, "contents") {
        conversation.said.push(read_content(content)?);
    }
    check_turns(&conversation)?;
    Ok(conversation)
}

fn read_content(content: &Value) -> Result<Said, String> {
    let by = match text(content, "role") {
        "user" | "" => Speaker::User,
        "model" => Speaker::Model,
        other => {
            return Err(format!(
                "Please use a valid role: user, model; not `{other}`"
            ));
        }
    };
    let mut said = Said::new(by);
    for part in list(content, "parts") {
        if let Some(call) = part.get("functionCall") {
            // Only the first of parallel calls is signed.
            if said.calls.is_empty() && part.get("thoughtSignature").is_none() {
                return Err("Function call is missing a thought_signature".to_owned());
            }
            let name = dotted(text(call, "name"));
            said.calls.push(Called {
                id: id_or_name(call, &name),
                name,
                arguments: call["args"].clone(),
            });
        } else if let Some(response) = part.get("functionResponse") {
            let name = dotted(text(response, "name"));
            let answer = &response["response"];
            let content = ["output", "error"]
                .into_iter()
                .find_map(|key| answer[key].as_str());
            said.results.push(Answered {
                id: id_or_name(response, &name),
                content: content.map_or_else(|| answer.to_string(), str::to_owned),
            });
        } else if part["thought"] != true {
            said.text.push_str(text(part, "text"));
        }
    }
    Ok(said)
}

fn id_or_name(value: &Value, name: &str) -> String {
    match text(value, "id") {
        "" => name.to_owned(),
        id => id.to_owned(),
    }
}

/// Every call must be answered in the next turn, by as many responses.
fn check_turns(conversation: &Conversation) -> Result<(), String> {
    if conversation.said.is_empty() {
        return Err("contents is not specified".to_owned());
    }
    for (index, said) in conversation.said.iter().enumerate() {
        let next = conversation.said.get(index + 1);
        let answers = next.map_or(0, |next| next.results.len());
        if !said.calls.is_empty() && answers != said.calls.len() {
            return Err("the number of function response parts must equal the number of function call parts of the function call turn".to_owned());
        }
        if said.by == Speaker::Model && next.is_some_and(|next| next.by == Speaker::Model) {
            return Err("two model turns follow each other".to_owned());
        }
    }
    Ok(())
}

pub(super) fn events(model: &str, reply: &Reply) -> Vec<String> {
    let mut parts: Vec<Value> = Vec::new();
    let mut calls = 0;
    for piece in &reply.pieces {
        match piece {
            Piece::Text(all) => {
                parts.extend(pieces(all).into_iter().map(|piece| json!({"text": piece})));
            }
            Piece::Reasoning(all) => {
                let thought = |piece| json!({"text": piece, "thought": true});
                parts.extend(pieces(all).into_iter().map(thought));
            }
            Piece::Call { name, arguments } => {
                let id = format!("fc_{}_{calls}", fingerprint(reply));
                let call = json!({"name": on_the_wire(name), "args": arguments, "id": id});
                let mut part = json!({"functionCall": call});
                if calls == 0 {
                    set(&mut part, "thoughtSignature", "c2lnbmF0dXJl");
                }
                parts.push(part);
                calls += 1;
            }
        }
    }
    let reason = match reply.stop {
        Stop::Natural => "STOP",
        Stop::Length => "MAX_TOKENS",
        Stop::Refused => "SAFETY",
    };
    let mut events: Vec<String> = parts
        .into_iter()
        .map(|part| event(model, reply, json!([part]), None))
        .collect();
    events.push(event(model, reply, json!([{"text": ""}]), Some(reason)));
    events
}

fn event(model: &str, reply: &Reply, parts: Value, reason: Option<&str>) -> String {
    let mut candidate = json!({"content": {"parts": parts, "role": "model"}, "index": 0});
    if let Some(reason) = reason {
        set(&mut candidate, "finishReason", reason);
    }
    let mut chunk = json!({
        "candidates": [candidate],
        "modelVersion": model,
        "responseId": "local",
    });
    if let Some(tokens) = reply.tokens {
        let is_last = reason.is_some();
        let answer = tokens.output.saturating_sub(tokens.reasoning);
        let usage = json!({
            "promptTokenCount": tokens.input,
            "cachedContentTokenCount": tokens.cached,
            "candidatesTokenCount": if is_last { answer } else { 1 },
            "thoughtsTokenCount": tokens.reasoning,
            "totalTokenCount": tokens.input + tokens.output,
        });
        set(&mut chunk, "usageMetadata", usage);
    }
    format!("data: {chunk}\r\n\r\n")
}

pub(super) fn error_body(status: u16, message: &str) -> Value {
    let name = match status {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        500 => "INTERNAL",
        501.. => "UNAVAILABLE",
        _ => "INVALID_ARGUMENT",
    };
    json!({"error": {"code": status, "message": message, "status": name}})
}
