//! Reads an answer of Google's `streamGenerateContent`.
//!
//! Each event is a whole `GenerateContentResponse`; function calls come whole,
//! counts are of the turn so far. Old models repeat `finishReason` in every
//! event, so that only the end of the body ends the answer.

use fluffy_contract::model::{FaultKind, ModelEvent, ModelFault, Opaque, Retry, StopReason, Usage};
use serde_json::{Map, Value};

use super::super::calls::Calls;
use super::super::names::ToolNames;
use super::super::sse::StreamEvent;
use super::super::{Format, Wire, fault, json as read, parse};

/// Reads an answer.
#[derive(Debug)]
pub(crate) struct Reader {
    names: ToolNames,
    calls: Calls,
    is_reasoning: bool,
    usage: Option<Usage>,
    finish: Option<String>,
    is_blocked: bool,
}

impl Reader {
    pub(crate) const fn new(names: ToolNames, calls: Calls) -> Self {
        Self {
            names,
            calls,
            is_reasoning: false,
            usage: None,
            finish: None,
            is_blocked: false,
        }
    }

    fn part(&mut self, part: &Value, out: &mut Vec<ModelEvent>) {
        let signature = part
            .get("thoughtSignature")
            .filter(|value| value.is_string());
        if let Some(function) = read::object(part, "functionCall") {
            self.end_reasoning(out);
            self.call(function, signature, out);
            return;
        }
        let text = read::text(part, "text").unwrap_or_default().to_owned();
        if part.get("thought").and_then(Value::as_bool) == Some(true) {
            if !text.is_empty() {
                self.is_reasoning = true;
                out.push(ModelEvent::ReasoningDelta { text });
            }
            if let Some(signature) = signature {
                self.is_reasoning = false;
                let opaque = Some(opaque([("thoughtSignature", Some(signature))]));
                out.push(ModelEvent::ReasoningEnd { opaque });
            }
            return;
        }
        if text.is_empty() && signature.is_none() {
            return;
        }
        self.end_reasoning(out);
        if !text.is_empty() {
            out.push(ModelEvent::TextDelta { text });
        }
        if let Some(signature) = signature {
            let opaque = opaque([("thoughtSignature", Some(signature))]);
            out.push(ModelEvent::TextEnd { opaque });
        }
    }

    fn call(&mut self, function: &Value, signature: Option<&Value>, out: &mut Vec<ModelEvent>) {
        let id = read::some_text(function, "id");
        let name = read::text(function, "name").unwrap_or_default();
        let name = self.names.ours(name).to_owned();
        let key = u64::try_from(self.calls.count()).unwrap_or(u64::MAX);
        self.calls.start(key, id, &name, out);
        if let Some(arguments) = read::object(function, "args") {
            self.calls.delta(key, &arguments.to_string(), out);
        }
        let own_id = function.get("id").filter(|_| id.is_some());
        let has_own = own_id.or(signature).is_some();
        let opaque = has_own.then(|| opaque([("id", own_id), ("thoughtSignature", signature)]));
        self.calls.end(key, opaque, out);
    }

    fn end_reasoning(&mut self, out: &mut Vec<ModelEvent>) {
        if std::mem::take(&mut self.is_reasoning) {
            out.push(ModelEvent::ReasoningEnd { opaque: None });
        }
    }

    fn last(&self, finish: &str) -> ModelEvent {
        let reason = match finish {
            "MAX_TOKENS" => StopReason::Length,
            "STOP" | "FINISH_REASON_UNSPECIFIED" if self.calls.any() => StopReason::ToolCalls,
            "STOP" | "FINISH_REASON_UNSPECIFIED" => StopReason::EndTurn,
            "MALFORMED_FUNCTION_CALL"
            | "MALFORMED_RESPONSE"
            | "UNEXPECTED_TOOL_CALL"
            | "TOO_MANY_TOOL_CALLS" => {
                return ModelEvent::Error(ModelFault {
                    kind: FaultKind::Malformed,
                    message: format!("the model's answer was not usable: {finish}"),
                    retryable: Retry::Later,
                });
            }
            _ => StopReason::Refused,
        };
        ModelEvent::Done { reason }
    }
}

impl Format for Reader {
    fn read(&mut self, event: &StreamEvent, out: &mut Vec<ModelEvent>) {
        let Some(chunk) = parse(event, out) else {
            return;
        };
        if let Some(fault) = fault::in_event(&chunk) {
            out.push(ModelEvent::Error(fault));
            return;
        }
        if let Some(usage) = read::object(&chunk, "usageMetadata") {
            self.usage = Some(usage_of(usage));
        }
        let feedback = chunk.get("promptFeedback").unwrap_or(&Value::Null);
        self.is_blocked |= read::some_text(feedback, "blockReason").is_some();
        let Some(candidate) = read::list(&chunk, "candidates").first() else {
            return;
        };
        let content = candidate.get("content").unwrap_or(&Value::Null);
        for part in read::list(content, "parts") {
            self.part(part, out);
        }
        if let Some(finish) = read::some_text(candidate, "finishReason") {
            self.finish = Some(finish.chars().take(64).collect());
        }
    }

    fn finish(&mut self, out: &mut Vec<ModelEvent>) {
        let last = match &self.finish {
            Some(finish) => self.last(finish),
            None if self.is_blocked => ModelEvent::Done {
                reason: StopReason::Refused,
            },
            None => return,
        };
        self.end_reasoning(out);
        out.extend(self.usage.take().map(ModelEvent::Usage));
        out.push(last);
    }
}

fn opaque<const N: usize>(fields: [(&str, Option<&Value>); N]) -> Opaque {
    let present = fields
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)));
    let value: Map<String, Value> = present
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect();
    let wire = Wire::Gemini.name().to_owned();
    Opaque {
        wire,
        model: String::new(),
        value: value.into(),
    }
}

fn usage_of(usage: &Value) -> Usage {
    let thoughts = read::count(usage, "thoughtsTokenCount");
    let prompt = read::count(usage, "promptTokenCount");
    let answer = read::count(usage, "candidatesTokenCount");
    Usage {
        input_tokens: prompt.saturating_add(read::count(usage, "toolUsePromptTokenCount")),
        cached_tokens: read::count(usage, "cachedContentTokenCount"),
        cache_write_tokens: 0,
        output_tokens: answer.saturating_add(thoughts),
        reasoning_tokens: thoughts,
    }
}
