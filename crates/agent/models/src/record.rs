//! Recordings: a session's model side, as lines of JSON without secrets.
//!
//! The first line says what it is and which version; every further line is one
//! turn: the digest of what was asked, the tool results that were new in it,
//! and the answer. Pieces are put together before secrets are removed, so that
//! none survives by being cut in two; what only a provider understands is left
//! out. Never opens a file: the caller brings the writer. Next: `replay`.

use std::io::{self, Write};

use fluffy_base::{Digest, Timestamp};
use fluffy_contract::model::{ModelEvent, Part, Role, Turn};
use fluffy_contract::tool::ToolOutcome;
use fluffy_secret::Redactor;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::answer::{Answer, End};

/// The version that is written.
pub const VERSION: u32 = 1;

/// The longest line that is read.
const MAX_LINE: usize = 32 << 20;

/// The most turns that are read.
const MAX_TURNS: usize = 100_000;

/// A recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    /// What it is.
    pub head: RecordingHead,
    /// Its turns.
    pub turns: Vec<RecordedTurn>,
}

/// The first line of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingHead {
    /// The version of the format.
    pub fluffy_recording: u32,
    /// When it began.
    pub created: Timestamp,
    /// Who answered, as `provider/model`.
    pub model: String,
}

/// One turn of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedTurn {
    /// The digest of everything that was asked.
    pub asked: Digest,
    /// The tool results that came since the model spoke last.
    pub results: Vec<SeenResult>,
    /// What it answered.
    pub events: Vec<ModelEvent>,
}

/// A tool result as the model saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenResult {
    /// The call's id.
    pub call: String,
    /// The tool.
    pub tool: String,
    /// What came back.
    pub content: String,
    /// Whether it was a success.
    pub outcome: ToolOutcome,
}

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadRecordingError {
    /// Empty, or it does not begin as one.
    #[error("this is not a recording of fluffy")]
    NotARecording,
    /// A newer version.
    #[error("the recording has version {version}; this program reads {VERSION}")]
    Version {
        /// Its version.
        version: u32,
    },
    /// A line is damaged.
    #[error("line {line} of the recording is damaged")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// Longer than anything we have written.
    #[error("line {line} of the recording is too long, or there are too many")]
    TooLong {
        /// Which, from 1.
        line: usize,
    },
}

/// Writes a recording.
#[derive(Debug)]
pub struct Recorder<W> {
    writer: W,
    redactor: Redactor,
}

impl<W: Write> Recorder<W> {
    /// Begins a recording. `redactor` must know the session's secrets.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn begin(
        mut writer: W,
        redactor: Redactor,
        model: &str,
        now: Timestamp,
    ) -> io::Result<Self> {
        let head = RecordingHead {
            fluffy_recording: VERSION,
            created: now,
            model: model.to_owned(),
        };
        write_line(&mut writer, &serde_json::to_value(head)?)?;
        Ok(Self { writer, redactor })
    }

    /// Writes one turn and its answer; events of broken attempts are left out.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn turn(&mut self, turn: &Turn, events: &[ModelEvent]) -> io::Result<()> {
        let recorded = RecordedTurn {
            asked: digest(turn),
            results: seen_results(turn),
            events: whole_events(events),
        };
        let mut value = serde_json::to_value(recorded)?;
        redact(&mut value, &self.redactor);
        write_line(&mut self.writer, &value)
    }
}

impl Recording {
    /// Reads a recording.
    ///
    /// # Errors
    /// It is none, is newer than this program, or is damaged.
    pub fn parse(bytes: &[u8]) -> Result<Self, ReadRecordingError> {
        let mut lines = bytes.split(|byte| *byte == b'\n').enumerate();
        let (_, first) = lines.next().ok_or(ReadRecordingError::NotARecording)?;
        if first.len() > MAX_LINE {
            return Err(ReadRecordingError::TooLong { line: 1 });
        }
        let head: Value =
            serde_json::from_slice(first).map_err(|_| ReadRecordingError::NotARecording)?;
        let version = head.get("fluffy_recording").and_then(Value::as_u64);
        let version = version.ok_or(ReadRecordingError::NotARecording)?;
        let version = u32::try_from(version).unwrap_or(u32::MAX);
        if version != VERSION {
            return Err(ReadRecordingError::Version { version });
        }
        let damaged = |line: usize| move |source| ReadRecordingError::Line { line, source };
        let head = serde_json::from_value(head).map_err(damaged(1))?;
        let mut turns = Vec::new();
        for (index, line) in lines.filter(|(_, line)| !line.is_empty()) {
            let number = index + 1;
            if line.len() > MAX_LINE || turns.len() >= MAX_TURNS {
                return Err(ReadRecordingError::TooLong { line: number });
            }
            turns.push(serde_json::from_slice(line).map_err(damaged(number))?);
        }
        Ok(Self { head, turns })
    }
}

/// The tool results that came since the model spoke last.
pub(crate) fn seen_results(turn: &Turn) -> Vec<SeenResult> {
    let spoke = |message: &fluffy_contract::model::Message| message.role == Role::Assistant;
    let since = turn.messages.iter().rposition(spoke).map_or(0, |at| at + 1);
    let new = turn
        .messages
        .iter()
        .skip(since)
        .flat_map(|message| &message.parts);
    let results = new.filter_map(|part| match part {
        Part::ToolResult {
            call,
            content,
            outcome,
        } => Some(SeenResult {
            call: call.clone(),
            tool: tool_of(turn, call),
            content: content.clone(),
            outcome: *outcome,
        }),
        Part::Text { .. } | Part::Reasoning { .. } | Part::ToolCall(_) => None,
    });
    results.collect()
}

fn tool_of(turn: &Turn, id: &str) -> String {
    let parts = turn
        .messages
        .iter()
        .rev()
        .flat_map(|message| &message.parts);
    let mut calls = parts.filter_map(|part| match part {
        Part::ToolCall(call) => Some(call),
        Part::Text { .. } | Part::Reasoning { .. } | Part::ToolResult { .. } => None,
    });
    calls
        .find(|call| call.id == id)
        .map(|call| call.name.clone())
        .unwrap_or_default()
}

/// Tells conversations apart, whoever answered them.
fn digest(turn: &Turn) -> Digest {
    let mut messages = turn.messages.clone();
    for part in messages.iter_mut().flat_map(|message| &mut message.parts) {
        match part {
            Part::Text { opaque, .. } | Part::Reasoning { opaque, .. } => *opaque = None,
            Part::ToolCall(call) => call.opaque = None,
            Part::ToolResult { .. } => {}
        }
    }
    Digest::of(&serde_json::to_vec(&messages).unwrap_or_default())
}

/// The events of an answer as if it had come in whole parts.
fn whole_events(events: &[ModelEvent]) -> Vec<ModelEvent> {
    let mut answer = Answer::default();
    events.iter().for_each(|event| answer.apply(event));
    let (usage, end) = (answer.usage(), answer.end().cloned());
    let mut whole = Vec::new();
    for part in answer.into_message().parts {
        match part {
            Part::Text { text, .. } => whole.push(ModelEvent::TextDelta { text }),
            Part::Reasoning { text, .. } => {
                whole.push(ModelEvent::ReasoningDelta { text });
                whole.push(ModelEvent::ReasoningEnd { opaque: None });
            }
            Part::ToolCall(call) => {
                let (id, name) = (call.id, call.name);
                let arguments = match call.arguments {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                whole.push(ModelEvent::ToolCallStart {
                    id: id.clone(),
                    name,
                });
                whole.push(ModelEvent::ToolCallDelta {
                    id: id.clone(),
                    arguments,
                });
                whole.push(ModelEvent::ToolCallEnd { id, opaque: None });
            }
            Part::ToolResult { .. } => {}
        }
    }
    whole.extend(usage.map(ModelEvent::Usage));
    whole.extend(end.map(|end| match end {
        End::Done(reason) => ModelEvent::Done { reason },
        End::Broken(fault) => ModelEvent::Error(fault),
    }));
    whole
}

/// Removes secrets from every text in a value.
fn redact(value: &mut Value, redactor: &Redactor) {
    match value {
        Value::String(text) => *text = redactor.redact(text).text,
        Value::Array(items) => items.iter_mut().for_each(|item| redact(item, redactor)),
        Value::Object(fields) => fields
            .values_mut()
            .for_each(|field| redact(field, redactor)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn write_line(writer: &mut impl Write, value: &Value) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    writer.write_all(&line)?;
    // A recording is worth most when something went wrong after it.
    writer.flush()
}

#[cfg(test)]
mod tests;
