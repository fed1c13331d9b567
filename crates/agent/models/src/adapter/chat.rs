//! OpenAI's Chat Completions, and the many servers that imitate it.
//!
//! Request: `model`, `messages[]` (`role`, `content`, `tool_calls[]` with `id`,
//! `function.name`, `function.arguments`; `tool_call_id`), `tools[]`, `stream`,
//! `stream_options.include_usage`, `max_completion_tokens` (imitators know
//! `max_tokens`), `reasoning_effort`, `prompt_cache_key`.
//! Answer: `choices[0].delta` with `content`, `refusal`, `reasoning_content` or
//! `reasoning`, `tool_calls[]` with `index`; `finish_reason`; `usage`; `[DONE]`.
//!
//! Imitators leave out `usage`, ids, indices or `[DONE]`, count every index
//! from 0, send arguments whole or as an object, and say `stop` after calls.

use fluffy_contract::model::{Effort, Message, ModelEvent, Part, Role, StopReason, Turn, Usage};
use serde_json::{Value, json};

use super::calls::Calls;
use super::names::ToolNames;
use super::sse::StreamEvent;
use super::{Format, arguments_of, fault, json as read, json::set, parse};
use crate::address::BaseUrl;

/// Keys from here on are ours, for calls that share an index or have none.
const FRESH: u64 = 1 << 32;

/// The request's body. Imitators are sent nothing that some of them refuse.
pub(super) fn encode(turn: &Turn, names: &ToolNames, server: &BaseUrl) -> Value {
    let messages = turn.messages.iter().flat_map(|m| message(m, names));
    let mut body = json!({
        "model": turn.model,
        "messages": messages.collect::<Vec<_>>(),
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    if server.host() == "api.openai.com" {
        set(&mut body, "max_completion_tokens", turn.max_output_tokens);
        if let Some(conversation) = &turn.conversation {
            set(&mut body, "prompt_cache_key", conversation.as_str());
        }
    } else {
        set(&mut body, "max_tokens", turn.max_output_tokens);
    }
    if !turn.tools.is_empty() {
        let tools = turn.tools.iter().map(|tool| {
            json!({"type": "function", "function": {
                "name": names.on_wire(&tool.name),
                "description": tool.summary,
                "parameters": tool.parameters,
            }})
        });
        set(&mut body, "tools", tools.collect::<Value>());
    }
    if let Some(effort) = turn.effort {
        set(&mut body, "reasoning_effort", effort_name(effort));
    }
    body
}

/// How hard to think, as OpenAI's two formats write it.
pub(super) const fn effort_name(effort: Effort) -> &'static str {
    match effort {
        Effort::Low => "low",
        Effort::Medium => "medium",
        Effort::High => "high",
    }
}

/// All text of a message, in one.
pub(super) fn text_of(message: &Message) -> String {
    let texts = message.parts.iter().filter_map(|part| match part {
        Part::Text { text, .. } => Some(text.as_str()),
        Part::Reasoning { .. } | Part::ToolCall(_) | Part::ToolResult { .. } => None,
    });
    texts.collect()
}

fn message(message: &Message, names: &ToolNames) -> Vec<Value> {
    let results = message.parts.iter().filter_map(|part| match part {
        Part::ToolResult { call, content, .. } => {
            Some(json!({"role": "tool", "tool_call_id": call, "content": content}))
        }
        Part::Text { .. } | Part::Reasoning { .. } | Part::ToolCall(_) => None,
    });
    let mut all: Vec<Value> = results.collect();
    let calls = message.parts.iter().filter_map(|part| match part {
        Part::ToolCall(call) => Some(json!({
            "id": call.id,
            "type": "function",
            "function": {
                "name": names.on_wire(&call.name),
                "arguments": arguments_of(call).to_string(),
            },
        })),
        Part::Text { .. } | Part::Reasoning { .. } | Part::ToolResult { .. } => None,
    });
    let (text, calls) = (text_of(message), calls.collect::<Vec<_>>());
    let role = match message.role {
        Role::System => "system",
        Role::User | Role::Tool => "user",
        Role::Assistant => "assistant",
    };
    match (text.is_empty(), calls.is_empty()) {
        (true, true) => {}
        (false, true) => all.push(json!({"role": role, "content": text})),
        (true, false) => all.push(json!({"role": role, "content": null, "tool_calls": calls})),
        (false, false) => all.push(json!({"role": role, "content": text, "tool_calls": calls})),
    }
    all
}

/// Reads an answer.
#[derive(Debug)]
pub(super) struct Reader {
    names: ToolNames,
    calls: Calls,
    is_reasoning: bool,
    is_refused: bool,
    reason: Option<StopReason>,
    usage: Option<Usage>,
}

impl Reader {
    pub(super) const fn new(names: ToolNames, calls: Calls) -> Self {
        Self {
            names,
            calls,
            is_reasoning: false,
            is_refused: false,
            reason: None,
            usage: None,
        }
    }

    fn choice(&mut self, choice: &Value, out: &mut Vec<ModelEvent>) {
        // A server that does not stream sends all of it as one `message`.
        let delta = read::object(choice, "delta").or_else(|| read::object(choice, "message"));
        if let Some(delta) = delta {
            self.delta(delta, out);
        }
        if let Some(reason) = read::some_text(choice, "finish_reason") {
            self.end_reasoning(out);
            self.calls.end_all(out);
            self.reason = Some(match reason {
                "length" => StopReason::Length,
                "content_filter" => StopReason::Refused,
                _ => StopReason::EndTurn,
            });
        }
    }

    fn delta(&mut self, delta: &Value, out: &mut Vec<ModelEvent>) {
        let reasoning = ["reasoning_content", "reasoning"].into_iter();
        if let Some(text) = reasoning
            .filter_map(|key| read::some_text(delta, key))
            .next()
        {
            self.is_reasoning = true;
            out.push(ModelEvent::ReasoningDelta {
                text: text.to_owned(),
            });
        }
        if let Some(text) = read::some_text(delta, "content") {
            self.end_reasoning(out);
            out.push(ModelEvent::TextDelta {
                text: text.to_owned(),
            });
        }
        if let Some(text) = read::some_text(delta, "refusal") {
            self.end_reasoning(out);
            self.is_refused = true;
            out.push(ModelEvent::TextDelta {
                text: text.to_owned(),
            });
        }
        for call in read::list(delta, "tool_calls") {
            self.end_reasoning(out);
            self.call(call, out);
        }
    }

    fn call(&mut self, call: &Value, out: &mut Vec<ModelEvent>) {
        let function = call.get("function").unwrap_or(&Value::Null);
        let name = read::some_text(function, "name");
        let id = read::some_text(call, "id");
        let key = self.key(call, id, name);
        if !self.calls.is_open(key) {
            // Arguments without a call to belong to are nobody's.
            let Some(name) = name else { return };
            let name = self.names.ours(name).to_owned();
            self.calls.start(key, id, &name, out);
        }
        match function.get("arguments") {
            Some(Value::String(text)) => self.calls.delta(key, text, out),
            Some(whole @ Value::Object(_)) => self.calls.delta(key, &whole.to_string(), out),
            Some(_) | None => {}
        }
    }

    /// Which call a piece belongs to, also where all have the same index.
    fn key(&self, call: &Value, id: Option<&str>, name: Option<&str>) -> u64 {
        let fresh = u64::try_from(self.calls.count()).unwrap_or(0) + FRESH;
        let Some(index) = read::some_count(call, "index") else {
            return match (id.or(name), self.calls.last_open()) {
                (None, Some(last)) => last,
                _ => fresh,
            };
        };
        if name.is_some() && self.calls.is_another(index, id) {
            return fresh;
        }
        match self.calls.last_open() {
            // The newest call had to leave an index that was taken.
            Some(newest) if newest >= FRESH && id.or(name).is_none() => newest,
            _ => index,
        }
    }

    fn end_reasoning(&mut self, out: &mut Vec<ModelEvent>) {
        if std::mem::take(&mut self.is_reasoning) {
            out.push(ModelEvent::ReasoningEnd { opaque: None });
        }
    }

    fn end(&mut self, reason: StopReason, out: &mut Vec<ModelEvent>) {
        self.end_reasoning(out);
        self.calls.end_all(out);
        out.extend(self.usage.take().map(ModelEvent::Usage));
        let reason = match reason {
            StopReason::EndTurn if self.calls.any() => StopReason::ToolCalls,
            StopReason::EndTurn if self.is_refused => StopReason::Refused,
            other => other,
        };
        out.push(ModelEvent::Done { reason });
    }
}

impl Format for Reader {
    fn read(&mut self, event: &StreamEvent, out: &mut Vec<ModelEvent>) {
        if event.data.trim() == "[DONE]" {
            // Some never give a reason; that they say it is over is enough.
            self.end(self.reason.unwrap_or(StopReason::EndTurn), out);
            return;
        }
        let Some(chunk) = parse(event, out) else {
            return;
        };
        if let Some(fault) = fault::in_event(&chunk) {
            out.push(ModelEvent::Error(fault));
            return;
        }
        if let Some(usage) = read::object(&chunk, "usage") {
            self.usage = Some(usage_of(usage));
        }
        if let Some(choice) = read::list(&chunk, "choices").first() {
            self.choice(choice, out);
        }
    }

    fn finish(&mut self, out: &mut Vec<ModelEvent>) {
        if let Some(reason) = self.reason {
            self.end(reason, out);
        }
    }
}

fn usage_of(usage: &Value) -> Usage {
    let input = usage.get("prompt_tokens_details").unwrap_or(&Value::Null);
    let output = usage
        .get("completion_tokens_details")
        .unwrap_or(&Value::Null);
    Usage {
        input_tokens: read::count(usage, "prompt_tokens"),
        cached_tokens: read::count(input, "cached_tokens"),
        cache_write_tokens: read::count(input, "cache_write_tokens"),
        output_tokens: read::count(usage, "completion_tokens"),
        reasoning_tokens: read::count(output, "reasoning_tokens"),
    }
}
