//! Reads an answer of Anthropic's Messages API.
//!
//! Events: `message_start` (`message.usage`), `content_block_start` (`index`,
//! `content_block.type`), `content_block_delta` (`delta.type` is `text_delta`,
//! `thinking_delta`, `signature_delta` or `input_json_delta`),
//! `content_block_stop`, `message_delta` (`delta.stop_reason`, `usage`),
//! `message_stop`, `ping`, `error`. Others are left alone, as documented.

use std::collections::BTreeMap;

use fluffy_contract::model::{ModelEvent, Opaque, StopReason, Usage};
use serde_json::{Value, json};

use super::super::calls::Calls;
use super::super::names::ToolNames;
use super::super::sse::StreamEvent;
use super::super::{Format, Wire, fault, json as read, parse};

/// Reads an answer.
#[derive(Debug)]
pub(crate) struct Reader {
    names: ToolNames,
    calls: Calls,
    blocks: BTreeMap<u64, Block>,
    usage: Usage,
    reason: Option<StopReason>,
}

/// A block that has begun and not ended.
#[derive(Debug)]
enum Block {
    Thinking { text: String, signature: String },
    Redacted { data: String },
    ToolUse { input: Value },
}

impl Reader {
    pub(crate) fn new(names: ToolNames, calls: Calls) -> Self {
        Self {
            names,
            calls,
            blocks: BTreeMap::new(),
            usage: Usage::default(),
            reason: None,
        }
    }

    fn block_start(&mut self, event: &Value, out: &mut Vec<ModelEvent>) {
        let index = read::count(event, "index");
        let block = event.get("content_block").unwrap_or(&Value::Null);
        let owned = |key: &str| read::text(block, key).unwrap_or_default().to_owned();
        match read::text(block, "type").unwrap_or_default() {
            "text" => show_text(owned("text"), out),
            "thinking" => {
                let (text, signature) = (owned("thinking"), owned("signature"));
                show_reasoning(&text, out);
                self.blocks
                    .insert(index, Block::Thinking { text, signature });
            }
            "redacted_thinking" => {
                let data = owned("data");
                self.blocks.insert(index, Block::Redacted { data });
            }
            "tool_use" => {
                let name = self.names.ours(&owned("name")).to_owned();
                self.calls.start(index, read::text(block, "id"), &name, out);
                let input = block.get("input").cloned().unwrap_or_default();
                self.blocks.insert(index, Block::ToolUse { input });
            }
            _ => {}
        }
    }

    fn block_delta(&mut self, event: &Value, out: &mut Vec<ModelEvent>) {
        let index = read::count(event, "index");
        let delta = event.get("delta").unwrap_or(&Value::Null);
        let owned = |key: &str| read::text(delta, key).unwrap_or_default().to_owned();
        match (
            read::text(delta, "type").unwrap_or_default(),
            self.blocks.get_mut(&index),
        ) {
            ("text_delta", _) => show_text(owned("text"), out),
            ("thinking_delta", Some(Block::Thinking { text, .. })) => {
                let more = owned("thinking");
                text.push_str(&more);
                show_reasoning(&more, out);
            }
            ("signature_delta", Some(Block::Thinking { signature, .. })) => {
                signature.push_str(&owned("signature"));
            }
            ("input_json_delta", _) => self.calls.delta(index, &owned("partial_json"), out),
            _ => {}
        }
    }

    fn block_stop(&mut self, event: &Value, out: &mut Vec<ModelEvent>) {
        let index = read::count(event, "index");
        let value = match self.blocks.remove(&index) {
            // An imitator's thoughts without a signature would be refused.
            Some(Block::Thinking { signature, .. }) if signature.is_empty() => None,
            Some(Block::Thinking { text, signature }) => {
                Some(json!({"type": "thinking", "thinking": text, "signature": signature}))
            }
            Some(Block::Redacted { data }) => {
                Some(json!({"type": "redacted_thinking", "data": data}))
            }
            Some(Block::ToolUse { input }) => {
                if input.as_object().is_some_and(|fields| !fields.is_empty()) {
                    self.calls.whole(index, &input.to_string(), out);
                }
                self.calls.end(index, None, out);
                return;
            }
            None => return,
        };
        let wire = Wire::Anthropic.name().to_owned();
        let model = String::new();
        let opaque = value.map(|value| Opaque { wire, model, value });
        out.push(ModelEvent::ReasoningEnd { opaque });
    }

    /// Counts are for the whole turn so far; what is not named stays.
    fn count(&mut self, usage: &Value, out: &mut Vec<ModelEvent>) {
        let cached = read::some_count(usage, "cache_read_input_tokens");
        let written = read::some_count(usage, "cache_creation_input_tokens");
        let before = self.usage.cached_tokens + self.usage.cache_write_tokens;
        let plain = read::some_count(usage, "input_tokens")
            .unwrap_or_else(|| self.usage.input_tokens.saturating_sub(before));
        self.usage.cached_tokens = cached.unwrap_or(self.usage.cached_tokens);
        self.usage.cache_write_tokens = written.unwrap_or(self.usage.cache_write_tokens);
        self.usage.input_tokens = plain
            .saturating_add(self.usage.cached_tokens)
            .saturating_add(self.usage.cache_write_tokens);
        if let Some(output) = read::some_count(usage, "output_tokens") {
            self.usage.output_tokens = output;
        }
        let details = usage.get("output_tokens_details").unwrap_or(&Value::Null);
        self.usage.reasoning_tokens = read::count(details, "thinking_tokens");
        out.push(ModelEvent::Usage(self.usage));
    }

    fn message_delta(&mut self, event: &Value, out: &mut Vec<ModelEvent>) {
        if let Some(usage) = read::object(event, "usage") {
            self.count(usage, out);
        }
        let delta = event.get("delta").unwrap_or(&Value::Null);
        self.reason = match read::text(delta, "stop_reason") {
            Some("tool_use") => Some(StopReason::ToolCalls),
            Some("max_tokens" | "model_context_window_exceeded") => Some(StopReason::Length),
            Some("refusal") => Some(StopReason::Refused),
            Some(_) => Some(StopReason::EndTurn),
            None => self.reason,
        };
    }

    fn end(&mut self, out: &mut Vec<ModelEvent>) {
        self.calls.end_all(out);
        let reason = match self.reason {
            Some(StopReason::EndTurn) | None if self.calls.any() => StopReason::ToolCalls,
            Some(reason) => reason,
            None => StopReason::EndTurn,
        };
        out.push(ModelEvent::Done { reason });
    }
}

impl Format for Reader {
    fn read(&mut self, event: &StreamEvent, out: &mut Vec<ModelEvent>) {
        let Some(event) = parse(event, out) else {
            return;
        };
        match read::text(&event, "type").unwrap_or_default() {
            "message_start" => {
                let message = event.get("message").unwrap_or(&Value::Null);
                if let Some(usage) = read::object(message, "usage") {
                    self.count(usage, out);
                }
            }
            "content_block_start" => self.block_start(&event, out),
            "content_block_delta" => self.block_delta(&event, out),
            "content_block_stop" => self.block_stop(&event, out),
            "message_delta" => self.message_delta(&event, out),
            "message_stop" => self.end(out),
            "ping" => {}
            _ => out.extend(fault::in_event(&event).map(ModelEvent::Error)),
        }
    }

    fn finish(&mut self, out: &mut Vec<ModelEvent>) {
        // The reason is the last thing said before `message_stop`.
        if self.reason.is_some() {
            self.end(out);
        }
    }
}

fn show_text(text: String, out: &mut Vec<ModelEvent>) {
    if !text.is_empty() {
        out.push(ModelEvent::TextDelta { text });
    }
}

fn show_reasoning(text: &str, out: &mut Vec<ModelEvent>) {
    if !text.is_empty() {
        let text = text.to_owned();
        out.push(ModelEvent::ReasoningDelta { text });
    }
}
