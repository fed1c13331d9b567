//! OpenAI's Responses API.
//!
//! Request: `model`, `instructions`, `input[]` (`message` with `input_text` or
//! `output_text`, `function_call` with `call_id`, `function_call_output`,
//! `reasoning` with `encrypted_content`), `tools[]`, `store`, `include`,
//! `reasoning.effort|summary`, `max_output_tokens`, `prompt_cache_key`.
//! Answer: `response.output_item.added|done` (`item`, `output_index`),
//! `response.output_text.delta`, `response.refusal.delta`,
//! `response.reasoning_summary_text.delta`, `response.reasoning_text.delta`,
//! `response.reasoning_summary_part.added` (`summary_index`),
//! `response.function_call_arguments.delta|done`, `error`, and one of
//! `response.completed|incomplete|failed` with `response.usage`.

use fluffy_contract::model::{Message, ModelEvent, Opaque, Part, Role, StopReason, Turn, Usage};
use serde_json::{Value, json};

use super::calls::Calls;
use super::chat::{effort_name, text_of};
use super::names::ToolNames;
use super::sse::StreamEvent;
use super::{Format, Wire, arguments_of, fault, json as read, json::set, parse};

/// The request's body. Nothing is stored there: the conversation is ours.
pub(super) fn encode(turn: &Turn, names: &ToolNames) -> Value {
    let input: Vec<Value> = turn.messages.iter().flat_map(|m| items(m, names)).collect();
    let instructions: Vec<String> = (turn.messages.iter())
        .filter(|message| message.role == Role::System)
        .map(text_of)
        .collect();
    let mut body = json!({
        "model": turn.model,
        "input": input,
        "stream": true,
        "store": false,
        "max_output_tokens": turn.max_output_tokens,
    });
    if !instructions.is_empty() {
        set(&mut body, "instructions", instructions.join("\n\n"));
    }
    if !turn.tools.is_empty() {
        let tools = turn.tools.iter().map(|tool| {
            json!({
                "type": "function",
                "name": names.on_wire(&tool.name),
                "description": tool.summary,
                "parameters": tool.parameters,
                "strict": false,
            })
        });
        set(&mut body, "tools", tools.collect::<Value>());
    }
    if let Some(effort) = turn.effort {
        set(
            &mut body,
            "reasoning",
            json!({"effort": effort_name(effort), "summary": "auto"}),
        );
    }
    // Other models refuse to be asked for it.
    if turn.effort.is_some() || thinks(&turn.model) {
        set(&mut body, "include", json!(["reasoning.encrypted_content"]));
    }
    if let Some(conversation) = &turn.conversation {
        set(&mut body, "prompt_cache_key", conversation.as_str());
    }
    body
}

/// Whether a model reasons without being asked, by its name.
fn thinks(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model);
    let generation = |rest: &str| {
        rest.chars()
            .take_while(char::is_ascii_digit)
            .collect::<String>()
    };
    if let Some(rest) = name.strip_prefix("gpt-") {
        return generation(rest)
            .parse::<u32>()
            .is_ok_and(|number| number >= 5);
    }
    name.contains("codex")
        || name
            .strip_prefix('o')
            .is_some_and(|rest| !generation(rest).is_empty())
}

fn items(message: &Message, names: &ToolNames) -> Vec<Value> {
    if message.role == Role::System {
        return Vec::new();
    }
    let items = message.parts.iter().filter_map(|part| match part {
        Part::Text { text, opaque } => text_item(message.role, text, opaque.as_ref()),
        // Only what it can decrypt; another provider's thoughts mean nothing.
        Part::Reasoning { opaque, .. } => {
            let own = opaque
                .as_ref()
                .filter(|opaque| opaque.wire == Wire::Responses.name());
            own.map(|opaque| opaque.value.clone())
        }
        Part::ToolCall(call) => Some(json!({
            "type": "function_call",
            "call_id": call.id,
            "name": names.on_wire(&call.name),
            "arguments": arguments_of(call).to_string(),
        })),
        Part::ToolResult { call, content, .. } => Some(json!({
            "type": "function_call_output", "call_id": call, "output": content,
        })),
    });
    items.collect()
}

fn text_item(role: Role, text: &str, opaque: Option<&Opaque>) -> Option<Value> {
    if text.is_empty() {
        return None;
    }
    let (role, kind) = match role {
        Role::Assistant => ("assistant", "output_text"),
        Role::User | Role::Tool | Role::System => ("user", "input_text"),
    };
    let content = json!([{"type": kind, "text": text}]);
    let mut item = json!({"type": "message", "role": role, "content": content});
    let own = opaque.filter(|opaque| opaque.wire == Wire::Responses.name());
    if let Some(phase) = own.and_then(|opaque| opaque.value.get("phase")) {
        set(&mut item, "phase", phase.clone());
    }
    Some(item)
}

/// Reads an answer.
#[derive(Debug)]
pub(super) struct Reader {
    names: ToolNames,
    calls: Calls,
    // What the item that is being streamed has shown so far.
    has_text: bool,
    has_reasoning: bool,
    is_refused: bool,
}

impl Reader {
    pub(super) const fn new(names: ToolNames, calls: Calls) -> Self {
        Self {
            names,
            calls,
            has_text: false,
            has_reasoning: false,
            is_refused: false,
        }
    }

    fn item_added(&mut self, event: &Value, out: &mut Vec<ModelEvent>) {
        let item = event.get("item").unwrap_or(&Value::Null);
        match read::text(item, "type") {
            Some("function_call") => self.start_call(event, item, out),
            Some("message") => self.has_text = false,
            Some("reasoning") => self.has_reasoning = false,
            Some(_) | None => {}
        }
    }

    fn start_call(&mut self, event: &Value, item: &Value, out: &mut Vec<ModelEvent>) {
        let name = read::text(item, "name").unwrap_or_default();
        let name = self.names.ours(name).to_owned();
        self.calls
            .start(index(event), read::text(item, "call_id"), &name, out);
    }

    fn item_done(&mut self, event: &Value, out: &mut Vec<ModelEvent>) {
        let item = event.get("item").unwrap_or(&Value::Null);
        match read::text(item, "type") {
            Some("function_call") => {
                if !self.calls.is_open(index(event)) {
                    self.start_call(event, item, out);
                }
                let arguments = read::text(item, "arguments").unwrap_or_default();
                self.calls.whole(index(event), arguments, out);
                self.calls.end(index(event), None, out);
            }
            Some("message") => self.message_done(item, out),
            Some("reasoning") => self.reasoning_done(item, out),
            Some(_) | None => {}
        }
    }

    fn message_done(&mut self, item: &Value, out: &mut Vec<ModelEvent>) {
        let content = read::list(item, "content").iter();
        let text: String = content
            .filter_map(|part| read::text(part, "text"))
            .collect();
        if !std::mem::take(&mut self.has_text) && !text.is_empty() {
            out.push(ModelEvent::TextDelta { text });
        }
        if let Some(phase) = read::text(item, "phase") {
            out.push(ModelEvent::TextEnd {
                opaque: opaque(json!({"phase": phase})),
            });
        }
    }

    fn reasoning_done(&mut self, item: &Value, out: &mut Vec<ModelEvent>) {
        let parts = read::list(item, "summary").iter();
        let summary: Vec<&str> = parts.filter_map(|part| read::text(part, "text")).collect();
        if !std::mem::take(&mut self.has_reasoning) && !summary.is_empty() {
            let text = summary.join("\n\n");
            out.push(ModelEvent::ReasoningDelta { text });
        }
        // Without its encrypted content it could not be understood again.
        let has_content = read::some_text(item, "encrypted_content").is_some();
        let opaque = has_content.then(|| {
            let mut item = item.clone();
            if let Some(fields) = item.as_object_mut() {
                fields.remove("status");
            }
            opaque(item)
        });
        out.push(ModelEvent::ReasoningEnd { opaque });
    }

    fn end(&mut self, response: &Value, out: &mut Vec<ModelEvent>) {
        self.calls.end_all(out);
        if let Some(usage) = read::object(response, "usage") {
            out.push(ModelEvent::Usage(usage_of(usage)));
        }
        let details = response.get("incomplete_details").unwrap_or(&Value::Null);
        let reason = match read::text(details, "reason") {
            Some("content_filter") => StopReason::Refused,
            Some(_) => StopReason::Length,
            None if self.calls.any() => StopReason::ToolCalls,
            None if self.is_refused => StopReason::Refused,
            None => StopReason::EndTurn,
        };
        out.push(ModelEvent::Done { reason });
    }

    fn deltas(&mut self, kind: &str, event: &Value, out: &mut Vec<ModelEvent>) {
        let Some(text) = read::some_text(event, "delta") else {
            return;
        };
        let text = text.to_owned();
        match kind {
            "response.function_call_arguments.delta" => {
                self.calls.delta(index(event), &text, out);
            }
            "response.output_text.delta" => {
                self.has_text = true;
                out.push(ModelEvent::TextDelta { text });
            }
            "response.refusal.delta" => {
                self.has_text = true;
                self.is_refused = true;
                out.push(ModelEvent::TextDelta { text });
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                self.has_reasoning = true;
                out.push(ModelEvent::ReasoningDelta { text });
            }
            _ => {}
        }
    }
}

impl Format for Reader {
    fn read(&mut self, event: &StreamEvent, out: &mut Vec<ModelEvent>) {
        if event.data.trim() == "[DONE]" {
            return;
        }
        let Some(event) = parse(event, out) else {
            return;
        };
        let response = event.get("response").unwrap_or(&Value::Null);
        match read::text(&event, "type").unwrap_or_default() {
            "response.output_item.added" => self.item_added(&event, out),
            "response.output_item.done" => self.item_done(&event, out),
            "response.function_call_arguments.done" => {
                let arguments = read::text(&event, "arguments").unwrap_or_default();
                self.calls.whole(index(&event), arguments, out);
            }
            "response.reasoning_summary_part.added" => {
                if read::count(&event, "summary_index") > 0 && self.has_reasoning {
                    let text = "\n\n".to_owned();
                    out.push(ModelEvent::ReasoningDelta { text });
                }
            }
            "response.completed" | "response.incomplete" => self.end(response, out),
            "response.failed" => {
                let error = response.get("error").unwrap_or(&Value::Null);
                out.push(ModelEvent::Error(fault::from_object(error)));
            }
            "error" => {
                let error = read::object(&event, "error").unwrap_or(&event);
                out.push(ModelEvent::Error(fault::from_object(error)));
            }
            kind if kind.ends_with(".delta") => self.deltas(kind, &event, out),
            _ => out.extend(fault::in_event(&event).map(ModelEvent::Error)),
        }
    }

    fn finish(&mut self, _out: &mut Vec<ModelEvent>) {}
}

fn index(event: &Value) -> u64 {
    read::count(event, "output_index")
}

fn opaque(value: Value) -> Opaque {
    let wire = Wire::Responses.name().to_owned();
    let model = String::new();
    Opaque { wire, model, value }
}

fn usage_of(usage: &Value) -> Usage {
    let input = usage.get("input_tokens_details").unwrap_or(&Value::Null);
    let output = usage.get("output_tokens_details").unwrap_or(&Value::Null);
    Usage {
        input_tokens: read::count(usage, "input_tokens"),
        cached_tokens: read::count(input, "cached_tokens"),
        cache_write_tokens: read::count(input, "cache_write_tokens"),
        output_tokens: read::count(usage, "output_tokens"),
        reasoning_tokens: read::count(output, "reasoning_tokens"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_that_think_are_known_by_name() {
        for model in [
            "o1",
            "o3-mini",
            "o4-mini",
            "gpt-5",
            "gpt-5.2-codex",
            "gpt-10",
            "codex-mini",
        ] {
            assert!(thinks(model), "{model}");
        }
        for model in ["gpt-4o", "gpt-4.1-mini", "omni", "llama3", "gpt-oss"] {
            assert!(!thinks(model), "{model}");
        }
    }
}
