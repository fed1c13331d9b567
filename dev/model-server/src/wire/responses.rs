//! OpenAI's Responses API.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::chat::fingerprint;
use super::{Format, is_tool_name, list, pieces, set, text};
use crate::conversation::{Answered, Called, Conversation, Said, Speaker, dotted, on_the_wire};
use crate::reply::{Piece, Reply, Stop};

pub(super) fn read(body: &Value) -> Result<Conversation, String> {
    if body["stream"] != true {
        return Err("this server only streams".to_owned());
    }
    let mut conversation = Conversation {
        format: Format::Responses,
        model: text(body, "model").to_owned(),
        system: text(body, "instructions").to_owned(),
        said: Vec::new(),
        tools: tools(body)?,
        number: 0,
    };
    if let Some(whole) = body["input"].as_str() {
        conversation.said.push(Said {
            text: whole.to_owned(),
            ..Said::new(Speaker::User)
        });
    }
    let mut open: BTreeSet<String> = BTreeSet::new();
    for item in list(body, "input") {
        conversation.said.push(read_item(item, &mut open)?);
    }
    if !open.is_empty() {
        return Err(format!("No tool output found for function calls {open:?}"));
    }
    match conversation.said.is_empty() {
        true => Err("no input".to_owned()),
        false => Ok(conversation),
    }
}

fn read_item(item: &Value, open: &mut BTreeSet<String>) -> Result<Said, String> {
    // The short form of a message has no type.
    let kind = item
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or("message");
    match kind {
        "message" => {
            let by = match text(item, "role") {
                "assistant" => Speaker::Model,
                _ => Speaker::User,
            };
            let content = match &item["content"] {
                Value::String(text) => text.clone(),
                parts => message_text(by, parts)?,
            };
            Ok(Said {
                text: content,
                ..Said::new(by)
            })
        }
        "function_call" => {
            let id = text(item, "call_id").to_owned();
            open.insert(id.clone());
            let arguments = text(item, "arguments");
            let arguments = serde_json::from_str(arguments)
                .map_err(|_| format!("arguments are no JSON: `{arguments}`"))?;
            let name = dotted(text(item, "name"));
            Ok(Said {
                calls: vec![Called {
                    id,
                    name,
                    arguments,
                }],
                ..Said::new(Speaker::Model)
            })
        }
        "function_call_output" => {
            let id = text(item, "call_id").to_owned();
            if !open.remove(&id) {
                return Err(format!("No tool call found for function call output {id}"));
            }
            let content = text(item, "output").to_owned();
            Ok(Said {
                results: vec![Answered { id, content }],
                ..Said::new(Speaker::User)
            })
        }
        "reasoning" => {
            if !text(item, "encrypted_content").starts_with("encrypted:") {
                return Err("encrypted content could not be verified".to_owned());
            }
            Ok(Said::new(Speaker::Model))
        }
        other => Err(format!("unknown item `{other}`")),
    }
}

fn message_text(by: Speaker, parts: &Value) -> Result<String, String> {
    let wanted = match by {
        Speaker::Model => "output_text",
        Speaker::User => "input_text",
    };
    let mut all = String::new();
    for part in parts.as_array().map_or(&[][..], Vec::as_slice) {
        if text(part, "type") != wanted {
            return Err(format!(
                "`{}` where `{wanted}` is supported",
                text(part, "type")
            ));
        }
        all.push_str(text(part, "text"));
    }
    Ok(all)
}

fn tools(body: &Value) -> Result<Vec<String>, String> {
    let names: Vec<&str> = list(body, "tools")
        .iter()
        .map(|tool| text(tool, "name"))
        .collect();
    match names.iter().find(|name| !is_tool_name(name)) {
        Some(wrong) => Err(format!("`{wrong}` does not match ^[a-zA-Z0-9_-]{{1,64}}$")),
        None => Ok(names.into_iter().map(dotted).collect()),
    }
}

/// Writes events with their numbers.
struct Writer<'a> {
    model: &'a str,
    events: Vec<String>,
    output: Vec<Value>,
}

pub(super) fn events(model: &str, reply: &Reply) -> Vec<String> {
    let mut writer = Writer {
        model,
        events: Vec::new(),
        output: Vec::new(),
    };
    for kind in ["response.created", "response.in_progress"] {
        let response = writer.response("in_progress", reply);
        writer.push(kind, json!({"response": response}));
    }
    for (number, piece) in reply.pieces.iter().enumerate() {
        match piece {
            Piece::Text(all) => writer.message(number, all),
            Piece::Reasoning(all) => writer.reasoning(number, all),
            Piece::Call { name, arguments } => {
                let id = format!("call_{}_{number}", fingerprint(reply));
                writer.call(number, &id, name, arguments);
            }
        }
    }
    let (kind, status) = match reply.stop {
        Stop::Natural => ("response.completed", "completed"),
        Stop::Length | Stop::Refused => ("response.incomplete", "incomplete"),
    };
    let response = writer.response(status, reply);
    writer.push(kind, json!({"response": response}));
    writer.events
}

impl Writer<'_> {
    fn push(&mut self, kind: &str, mut event: Value) {
        set(&mut event, "type", kind);
        set(&mut event, "sequence_number", self.events.len());
        self.events
            .push(format!("event: {kind}\ndata: {event}\n\n"));
    }

    fn item(&mut self, kind: &str, item: &Value) {
        let index = self.output.len();
        self.push(kind, json!({"output_index": index, "item": item}));
    }

    fn done(&mut self, item: Value) {
        self.item("response.output_item.done", &item);
        self.output.push(item);
    }

    fn message(&mut self, number: usize, all: &str) {
        let id = format!("msg_{number}");
        let item = |status: &str, content: Value| json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content});
        let part = |text: &str| json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []});
        self.item(
            "response.output_item.added",
            &item("in_progress", json!([])),
        );
        let index = self.output.len();
        let place = |mut event: Value| {
            set(&mut event, "item_id", id.as_str());
            set(&mut event, "output_index", index);
            set(&mut event, "content_index", 0);
            event
        };
        self.push(
            "response.content_part.added",
            place(json!({"part": part("")})),
        );
        for piece in pieces(all) {
            let event = place(json!({"delta": piece, "logprobs": []}));
            self.push("response.output_text.delta", event);
        }
        self.push(
            "response.output_text.done",
            place(json!({"text": all, "logprobs": []})),
        );
        self.push(
            "response.content_part.done",
            place(json!({"part": part(all)})),
        );
        self.done(item("completed", json!([part(all)])));
    }

    fn reasoning(&mut self, number: usize, all: &str) {
        let id = format!("rs_{number}");
        let index = self.output.len();
        let item = |summary: Value, encrypted: Value| json!({"id": id, "type": "reasoning", "summary": summary, "encrypted_content": encrypted});
        self.item("response.output_item.added", &item(json!([]), Value::Null));
        let place = |mut event: Value| {
            set(&mut event, "item_id", id.as_str());
            set(&mut event, "output_index", index);
            set(&mut event, "summary_index", 0);
            event
        };
        let part = |text: &str| json!({"type": "summary_text", "text": text});
        let added = place(json!({"part": part("")}));
        self.push("response.reasoning_summary_part.added", added);
        for piece in pieces(all) {
            let event = place(json!({"delta": piece}));
            self.push("response.reasoning_summary_text.delta", event);
        }
        self.push(
            "response.reasoning_summary_text.done",
            place(json!({"text": all})),
        );
        let done = place(json!({"part": part(all)}));
        self.push("response.reasoning_summary_part.done", done);
        let encrypted = format!("encrypted:{number}");
        self.done(item(json!([part(all)]), encrypted.into()));
    }

    fn call(&mut self, number: usize, call_id: &str, name: &str, arguments: &Value) {
        let id = format!("fc_{number}");
        let index = self.output.len();
        let item = |status: &str, arguments: &str| {
            json!({
                "id": id, "type": "function_call", "status": status,
                "call_id": call_id, "name": on_the_wire(name), "arguments": arguments,
            })
        };
        let all = arguments.to_string();
        self.item("response.output_item.added", &item("in_progress", ""));
        for piece in pieces(&all) {
            let event = json!({"item_id": id, "output_index": index, "delta": piece});
            self.push("response.function_call_arguments.delta", event);
        }
        let event = json!({
            "item_id": id, "output_index": index, "arguments": all, "name": on_the_wire(name),
        });
        self.push("response.function_call_arguments.done", event);
        self.done(item("completed", &all));
    }

    fn response(&self, status: &str, reply: &Reply) -> Value {
        let details = match reply.stop {
            Stop::Natural => Value::Null,
            Stop::Length => json!({"reason": "max_output_tokens"}),
            Stop::Refused => json!({"reason": "content_filter"}),
        };
        let is_over = status != "in_progress";
        let usage = reply.tokens.filter(|_| is_over).map(|tokens| {
            json!({
                "input_tokens": tokens.input,
                "input_tokens_details": {
                    "cached_tokens": tokens.cached, "cache_write_tokens": tokens.cache_write,
                },
                "output_tokens": tokens.output,
                "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
                "total_tokens": tokens.input + tokens.output,
            })
        });
        json!({
            "id": "resp_local",
            "object": "response",
            "created_at": 1_763_000_000,
            "status": status,
            "error": null,
            "incomplete_details": if is_over { details } else { Value::Null },
            "instructions": null,
            "metadata": {},
            "model": self.model,
            "output": if is_over { self.output.clone() } else { Vec::new() },
            "parallel_tool_calls": true,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": usage,
        })
    }
}

pub(super) fn error_event(message: &str) -> String {
    let event = json!({
        "type": "error", "code": "server_is_overloaded", "message": message,
        "param": null, "sequence_number": 99,
    });
    format!("event: error\ndata: {event}\n\n")
}
