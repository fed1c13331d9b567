//! Recordings: a session's model side, as lines of JSON without secrets.
//!
//! The first line says what it is, every further one is a turn (the tool
//! results that were new in it, and the answer), the last how it ended: what
//! has no last line was cut. Texts are whole before secrets are taken out, so
//! that none survives by being cut in two; what only a provider understands is
//! left out, and the project's path is a word. Never opens a file. Next:
//! `replay`.

use std::io::{self, Read};

use fluffy_base::Timestamp;
use fluffy_contract::model::{ModelEvent, Part, Role, StopReason, Turn, Usage};
use fluffy_contract::tool::ToolOutcome;
use fluffy_secret::Redactor;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version that is written.
pub const VERSION: u32 = 1;

/// What stands for the project's own path.
pub(crate) const PROJECT: &str = "<project>";

/// The largest recording that is read.
pub const MAX_BYTES: u64 = 256 << 20;

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
    /// How it ended.
    pub end: RecordingEnd,
}

/// The first line of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingHead {
    /// The version of the format.
    pub fluffy_recording: u32,
    /// When the session began.
    pub created: Timestamp,
    /// Who answered, as `provider/model`.
    pub model: String,
    /// What was to be done.
    pub task: String,
    /// How strictly test-first held.
    pub mode: String,
}

/// One turn of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedTurn {
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

/// The last line of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingEnd {
    /// How the session ended, in its own word.
    pub ended: String,
    /// What the kernel saw, a fact each.
    pub seen: Vec<String>,
}

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadRecordingError {
    /// Its bytes cannot be had.
    #[error("it cannot be read")]
    Unreadable(#[source] io::Error),
    /// Larger than anything we have written.
    #[error("it is larger than {} MiB", MAX_BYTES >> 20)]
    TooLarge,
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
    /// The last line is missing.
    #[error("the recording was cut: its end is missing")]
    Cut,
    /// Longer than anything we have written.
    #[error("line {line} of the recording is too long, or there are too many")]
    TooLong {
        /// Which, from 1.
        line: usize,
    },
}

impl RecordedTurn {
    /// A whole answer, as the events it could have come in.
    #[must_use]
    pub fn of(results: Vec<SeenResult>, parts: &[Part], usage: Usage, stop: StopReason) -> Self {
        let mut events: Vec<ModelEvent> = parts.iter().flat_map(events_of).collect();
        events.push(ModelEvent::Usage(usage));
        events.push(ModelEvent::Done { reason: stop });
        Self { results, events }
    }
}

impl Recording {
    /// The recording as a file, without secrets and without the path of the
    /// project. `redactor` must know the session's own secrets.
    #[must_use]
    pub fn to_file(&self, redactor: &Redactor, project: &str) -> Vec<u8> {
        let lines = std::iter::once(serde_json::to_value(&self.head))
            .chain(self.turns.iter().map(serde_json::to_value))
            .chain(std::iter::once(serde_json::to_value(&self.end)));
        let mut file = Vec::new();
        for line in lines {
            // Plain data of ours always has a JSON form.
            let mut value = line.unwrap_or_default();
            each_text(&mut value, &|text| {
                let text = without(text, project);
                redactor.redact(&text).text
            });
            file.extend_from_slice(value.to_string().as_bytes());
            file.push(b'\n');
        }
        file
    }

    /// Reads a recording to its end.
    ///
    /// # Errors
    /// It cannot be had, or is none that we can play.
    pub fn read(reader: impl Read) -> Result<Self, ReadRecordingError> {
        let mut bytes = Vec::new();
        let read = reader.take(MAX_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(ReadRecordingError::Unreadable)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(ReadRecordingError::TooLarge);
        }
        Self::parse(&bytes)
    }

    /// Reads a recording from its bytes.
    ///
    /// # Errors
    /// It is none, is newer than this program, was cut, or is damaged.
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
            let value: Value = serde_json::from_slice(line).map_err(damaged(number))?;
            if value.get("ended").is_some() {
                let end = serde_json::from_value(value).map_err(damaged(number))?;
                return Ok(Self { head, turns, end });
            }
            turns.push(serde_json::from_value(value).map_err(damaged(number))?);
        }
        Err(ReadRecordingError::Cut)
    }

    /// The same recording, in this project.
    #[must_use]
    pub(crate) fn in_project(mut self, project: &str) -> Self {
        let within = |text: &mut String| *text = text.replace(PROJECT, project);
        for event in self.turns.iter_mut().flat_map(|turn| &mut turn.events) {
            match event {
                ModelEvent::TextDelta { text } | ModelEvent::ReasoningDelta { text } => {
                    within(text);
                }
                ModelEvent::ToolCallDelta { arguments, .. } => within(arguments),
                _ => {}
            }
        }
        self
    }
}

/// A text with a word in the place of the project's path.
pub(crate) fn without(text: &str, project: &str) -> String {
    match project.len() {
        // The root of a file system is in every path and says nothing.
        0 | 1 => text.to_owned(),
        _ => text.replace(project, PROJECT),
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

/// The events of one part, as if it had come whole.
fn events_of(part: &Part) -> Vec<ModelEvent> {
    match part {
        Part::Text { text, .. } => vec![ModelEvent::TextDelta { text: text.clone() }],
        Part::Reasoning { text, .. } => vec![
            ModelEvent::ReasoningDelta { text: text.clone() },
            ModelEvent::ReasoningEnd { opaque: None },
        ],
        Part::ToolCall(call) => {
            let arguments = match &call.arguments {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let id = call.id.clone();
            vec![
                ModelEvent::ToolCallStart {
                    id: id.clone(),
                    name: call.name.clone(),
                },
                ModelEvent::ToolCallDelta {
                    id: id.clone(),
                    arguments,
                },
                ModelEvent::ToolCallEnd { id, opaque: None },
            ]
        }
        Part::ToolResult { .. } => Vec::new(),
    }
}

/// Changes every text in a value.
fn each_text(value: &mut Value, change: &impl Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| each_text(item, change)),
        Value::Object(fields) => fields
            .values_mut()
            .for_each(|field| each_text(field, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests;
