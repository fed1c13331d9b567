//! Events put together again: the message that goes into the conversation.
//!
//! Parts keep the order in which they began, opaque items stay with their
//! part, and a restart forgets everything. Never judges the arguments of a
//! call: what is no JSON stays text, and the tool's schema refuses it.

use fluffy_contract::model::{
    Message, ModelEvent, ModelFault, Opaque, Part, Role, StopReason, ToolCall, Usage,
};
use fluffy_contract::tool::ToolOutcome;
use serde_json::Value;

/// Arguments that are longer or nest deeper stay text.
const MAX_ARGUMENTS: usize = 1 << 20;
const MAX_DEPTH: usize = 32;

/// An answer as far as it has come.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    parts: Vec<Open>,
    usage: Option<Usage>,
    // What attempts used whose output was taken back: it was paid for.
    spent: Option<Usage>,
    end: Option<End>,
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It is complete.
    Done(StopReason),
    /// It broke off.
    Broken(ModelFault),
}

#[derive(Debug, Clone)]
struct Open {
    kind: Kind,
    text: String,
    opaque: Option<Opaque>,
    is_closed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Text,
    Reasoning,
    Call { id: String, name: String },
}

impl Answer {
    /// Takes the next event.
    pub fn apply(&mut self, event: &ModelEvent) {
        match event {
            ModelEvent::TextDelta { text } => self.open(Kind::Text).text.push_str(text),
            ModelEvent::TextEnd { opaque } => self.close(Kind::Text, Some(opaque.clone())),
            ModelEvent::ReasoningDelta { text } => self.open(Kind::Reasoning).text.push_str(text),
            ModelEvent::ReasoningEnd { opaque } => self.close(Kind::Reasoning, opaque.clone()),
            ModelEvent::ToolCallStart { id, name } => {
                let (id, name) = (id.clone(), name.clone());
                self.parts.push(Open::new(Kind::Call { id, name }));
            }
            ModelEvent::ToolCallDelta { id, arguments } => {
                if let Some(part) = self.call(id) {
                    part.text.push_str(arguments);
                }
            }
            ModelEvent::ToolCallEnd { id, opaque } => {
                if let Some(part) = self.call(id) {
                    part.opaque.clone_from(opaque);
                    part.is_closed = true;
                }
            }
            ModelEvent::Usage(usage) => self.usage = Some(*usage),
            ModelEvent::Waiting { .. } => {}
            ModelEvent::Restarted { .. } => {
                *self = Self {
                    spent: self.usage(),
                    ..Self::default()
                };
            }
            ModelEvent::Done { reason } => self.end = Some(End::Done(*reason)),
            ModelEvent::Error(fault) => self.end = Some(End::Broken(fault.clone())),
        }
    }

    /// How it ended, if it has.
    #[must_use]
    pub const fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// What it used, attempts that broke included; nothing if no provider said.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        match (self.spent, self.usage) {
            (Some(spent), Some(usage)) => Some(Usage {
                input_tokens: spent.input_tokens.saturating_add(usage.input_tokens),
                cached_tokens: spent.cached_tokens.saturating_add(usage.cached_tokens),
                cache_write_tokens: (spent.cache_write_tokens)
                    .saturating_add(usage.cache_write_tokens),
                output_tokens: spent.output_tokens.saturating_add(usage.output_tokens),
                reasoning_tokens: spent
                    .reasoning_tokens
                    .saturating_add(usage.reasoning_tokens),
            }),
            (spent, usage) => spent.or(usage),
        }
    }

    /// The text so far.
    #[must_use]
    pub fn text(&self) -> String {
        let texts = self.parts.iter().filter(|part| part.kind == Kind::Text);
        texts.map(|part| part.text.as_str()).collect()
    }

    /// The message, with complete calls only.
    #[must_use]
    pub fn into_message(self) -> Message {
        Message {
            role: Role::Assistant,
            parts: self.parts.into_iter().filter_map(Open::into_part).collect(),
        }
    }

    fn open(&mut self, kind: Kind) -> &mut Open {
        let is_open = |part: &Open| part.kind == kind && !part.is_closed;
        if !self.parts.last().is_some_and(is_open) {
            self.parts.push(Open::new(kind));
        }
        let last = self.parts.len().saturating_sub(1);
        #[expect(clippy::indexing_slicing, reason = "one was pushed if there was none")]
        &mut self.parts[last]
    }

    fn close(&mut self, kind: Kind, opaque: Option<Opaque>) {
        let part = self.open(kind);
        part.opaque = opaque;
        part.is_closed = true;
    }

    fn call(&mut self, wanted: &str) -> Option<&mut Open> {
        let is_it = |part: &&mut Open| matches!(&part.kind, Kind::Call { id, .. } if id == wanted);
        self.parts.iter_mut().rev().find(is_it)
    }
}

impl Open {
    const fn new(kind: Kind) -> Self {
        Self {
            kind,
            text: String::new(),
            opaque: None,
            is_closed: false,
        }
    }

    fn into_part(self) -> Option<Part> {
        let Self { text, opaque, .. } = self;
        match self.kind {
            Kind::Text => Some(Part::Text { text, opaque }),
            Kind::Reasoning => Some(Part::Reasoning { text, opaque }),
            // A call that was cut off must not be run.
            Kind::Call { .. } if !self.is_closed => None,
            Kind::Call { id, name } => {
                let arguments = parse_arguments(&text).unwrap_or(Value::String(text));
                Some(Part::ToolCall(ToolCall {
                    id,
                    name,
                    arguments,
                    opaque,
                }))
            }
        }
    }
}

/// Gives every call without a result one that says why there is none.
///
/// A conversation that was interrupted has such calls, and every provider
/// refuses it until they are answered.
pub fn close_open_calls(messages: &mut Vec<Message>, because: &str) {
    let mut at = 0;
    while at < messages.len() {
        let open = open_calls(messages, at);
        if !open.is_empty() {
            let parts = open.into_iter().map(|call| Part::ToolResult {
                call,
                content: because.to_owned(),
                outcome: ToolOutcome::Failed,
            });
            let results = Message {
                role: Role::Tool,
                parts: parts.collect(),
            };
            messages.insert(at + 1, results);
        }
        at += 1;
    }
}

/// The calls of one message that no later message answers.
fn open_calls(messages: &[Message], at: usize) -> Vec<String> {
    let later = messages.iter().skip(at).flat_map(|message| &message.parts);
    let answered: Vec<&str> = later
        .filter_map(|part| match part {
            Part::ToolResult { call, .. } => Some(call.as_str()),
            Part::Text { .. } | Part::Reasoning { .. } | Part::ToolCall(_) => None,
        })
        .collect();
    let parts = messages
        .get(at)
        .map_or(&[][..], |message| message.parts.as_slice());
    let calls = parts.iter().filter_map(|part| match part {
        Part::ToolCall(call) if !answered.contains(&call.id.as_str()) => Some(call.id.clone()),
        Part::ToolCall(_)
        | Part::Text { .. }
        | Part::Reasoning { .. }
        | Part::ToolResult { .. } => None,
    });
    calls.collect()
}

/// The arguments, unless they are so large or deep that no message between
/// our processes could carry them; they must not end the session.
fn parse_arguments(text: &str) -> Option<Value> {
    let is_small = text.len() <= MAX_ARGUMENTS;
    let value = is_small
        .then(|| serde_json::from_str(text).ok())
        .flatten()?;
    is_shallow(&value, MAX_DEPTH).then_some(value)
}

fn is_shallow(value: &Value, left: usize) -> bool {
    let Some(left) = left.checked_sub(1) else {
        return false;
    };
    match value {
        Value::Array(items) => items.iter().all(|item| is_shallow(item, left)),
        Value::Object(fields) => fields.values().all(|field| is_shallow(field, left)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(events: &[ModelEvent]) -> Answer {
        let mut answer = Answer::default();
        events.iter().for_each(|event| answer.apply(event));
        answer
    }

    fn text(text: &str) -> ModelEvent {
        ModelEvent::TextDelta { text: text.into() }
    }

    fn start(id: &str) -> ModelEvent {
        ModelEvent::ToolCallStart {
            id: id.into(),
            name: "fs.read".into(),
        }
    }

    fn delta(id: &str, arguments: &str) -> ModelEvent {
        ModelEvent::ToolCallDelta {
            id: id.into(),
            arguments: arguments.into(),
        }
    }

    fn end(id: &str) -> ModelEvent {
        ModelEvent::ToolCallEnd {
            id: id.into(),
            opaque: None,
        }
    }

    #[test]
    fn parts_keep_their_order_and_parallel_calls_their_arguments() {
        let opaque = Opaque {
            wire: "w".into(),
            model: "m".into(),
            value: json!(1),
        };
        let answer = answer(&[
            ModelEvent::ReasoningDelta { text: "hm".into() },
            ModelEvent::ReasoningEnd {
                opaque: Some(opaque.clone()),
            },
            text("a"),
            text("b"),
            start("1"),
            start("2"),
            delta("2", "{\"x\":"),
            delta("1", "{}"),
            delta("2", "2}"),
            end("2"),
            end("1"),
            ModelEvent::Done {
                reason: StopReason::ToolCalls,
            },
        ]);
        assert_eq!(answer.end(), Some(&End::Done(StopReason::ToolCalls)));
        let parts = answer.into_message().parts;
        assert_eq!(
            parts[0],
            Part::Reasoning {
                text: "hm".into(),
                opaque: Some(opaque)
            }
        );
        assert_eq!(
            parts[1],
            Part::Text {
                text: "ab".into(),
                opaque: None
            }
        );
        assert!(matches!(&parts[2], Part::ToolCall(call) if call.arguments == json!({})));
        assert!(matches!(&parts[3], Part::ToolCall(call) if call.arguments == json!({"x": 2})));
    }

    #[test]
    fn a_restart_forgets_and_a_cut_call_is_left_out() {
        let used = |tokens| {
            ModelEvent::Usage(Usage {
                output_tokens: tokens,
                ..Usage::default()
            })
        };
        let answer = answer(&[
            text("old"),
            used(5),
            used(7),
            ModelEvent::Restarted {
                model: "p/m".into(),
                because: "it broke".into(),
            },
            text("new"),
            used(2),
            start("1"),
            delta("1", "{\"pa"),
        ]);
        assert_eq!(answer.text(), "new");
        assert_eq!(
            answer.usage().unwrap().output_tokens,
            9,
            "what was taken back was paid for"
        );
        assert_eq!(answer.into_message().parts.len(), 1);
    }

    #[test]
    fn arguments_that_are_no_json_stay_text() {
        let answer = answer(&[start("1"), delta("1", "{oops"), end("1")]);
        let parts = answer.into_message().parts;
        assert!(matches!(&parts[0], Part::ToolCall(call) if call.arguments == json!("{oops")));
    }

    #[test]
    fn arguments_that_no_frame_could_carry_stay_text() {
        let deep = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        let long = format!("[{}1]", "1,".repeat(600_000));
        for (text, is_parsed) in [
            (deep(31), true),
            (deep(32), false),
            (deep(500), false),
            (long, false),
        ] {
            let answer = answer(&[start("1"), delta("1", &text), end("1")]);
            let parts = answer.into_message().parts;
            let Part::ToolCall(call) = &parts[0] else {
                panic!("no call")
            };
            assert_eq!(call.arguments.is_array(), is_parsed);
        }
    }

    #[test]
    fn calls_without_results_are_closed_where_they_were_made() {
        let made = answer(&[start("1"), end("1"), start("2"), end("2")]).into_message();
        let result = Part::ToolResult {
            call: "1".into(),
            content: "x".into(),
            outcome: ToolOutcome::Done,
        };
        let answered = Message {
            role: Role::Tool,
            parts: vec![result],
        };
        let mut messages = vec![made.clone(), answered.clone()];
        close_open_calls(&mut messages, "it was interrupted");
        assert_eq!(messages.len(), 3);
        assert!(
            matches!(&messages[1].parts[..], [Part::ToolResult { call, outcome: ToolOutcome::Failed, .. }] if call == "2")
        );
        let before = messages.clone();
        close_open_calls(&mut messages, "again");
        assert_eq!(messages, before, "nothing is open any more");
    }
}
