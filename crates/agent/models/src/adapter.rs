//! Wire formats: a turn becomes a request, bytes become events. Pure both ways.
//!
//! [`encode`] and [`Decoder`] are all that the rest of the crate sees; each
//! format is one folder beside. Nothing here reads a clock, a file or a socket,
//! and no key ever passes: [`Wire::key_header`] is applied by the client alone.

mod anthropic;
mod calls;
mod chat;
pub(crate) mod fault;
mod gemini;
mod json;
mod names;
mod responses;
mod sse;

use std::collections::BTreeSet;

use fluffy_contract::model::{
    FaultKind, ModelEvent, ModelFault, Opaque, Part, Retry, ToolCall, Turn,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use sse::MAX_EVENT;

use crate::address::BaseUrl;
use calls::Calls;
use names::ToolNames;
use sse::{EventReader, StreamEvent};

/// The format a provider speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wire {
    /// OpenAI's Responses API.
    Responses,
    /// OpenAI's Chat Completions API, and every server that imitates it.
    Chat,
    /// Anthropic's Messages API.
    Anthropic,
    /// Google's `streamGenerateContent`.
    Gemini,
}

/// What a request needs to know about its provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderSettings {
    /// The provider's name, as in `provider/model`.
    pub provider: String,
    /// What it speaks.
    pub wire: Wire,
    /// Where it is.
    pub base_url: BaseUrl,
}

/// A request without its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRequest {
    /// Path and query, the base URL's path included.
    pub path: String,
    /// Headers other than `host`, the length and the key.
    pub headers: Vec<(&'static str, &'static str)>,
    /// JSON.
    pub body: Vec<u8>,
}

/// Why a turn cannot be written in a wire format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeTurnError {
    /// The model's name has characters no provider uses.
    #[error("`{model}` is not the name of a model")]
    ModelName {
        /// The name, cut.
        model: String,
    },
    /// A result answers a call that no message made.
    #[error("the result for `{call}` answers no call of this conversation")]
    OrphanResult {
        /// The call's id.
        call: String,
    },
    /// A call has no result; see [`crate::answer::close_open_calls`].
    #[error("the call `{call}` has no result")]
    OpenCall {
        /// The call's id.
        call: String,
    },
    /// The request is too large to be sent.
    #[error("the request has {size} bytes, more than {MAX_REQUEST}")]
    TooLarge {
        /// How large it is.
        size: usize,
    },
}

/// The largest request body; providers refuse less than this.
pub const MAX_REQUEST: usize = 32 << 20;

/// The most characters of a model's name.
const MAX_MODEL_NAME: usize = 256;

/// Writes a turn in a provider's format.
///
/// # Errors
/// The turn cannot be written; sending it again would not help.
pub fn encode(turn: &Turn, settings: &ProviderSettings) -> Result<HttpRequest, EncodeTurnError> {
    check_model_name(&turn.model)?;
    check_results(turn)?;
    let names = ToolNames::of(turn);
    let (path, body) = match settings.wire {
        Wire::Responses => ("/responses".to_owned(), responses::encode(turn, &names)),
        Wire::Chat => (
            "/chat/completions".to_owned(),
            chat::encode(turn, &names, &settings.base_url),
        ),
        Wire::Anthropic => ("/v1/messages".to_owned(), anthropic::encode(turn, &names)),
        Wire::Gemini => (gemini::path(&turn.model), gemini::encode(turn, &names)),
    };
    let body = body.to_string().into_bytes();
    if body.len() > MAX_REQUEST {
        return Err(EncodeTurnError::TooLarge { size: body.len() });
    }
    let mut headers = vec![
        ("accept", "text/event-stream"),
        ("content-type", "application/json"),
        ("user-agent", concat!("fluffy/", env!("CARGO_PKG_VERSION"))),
    ];
    if settings.wire == Wire::Anthropic {
        headers.push(("anthropic-version", "2023-06-01"));
    }
    Ok(HttpRequest {
        path: format!("{}{path}", settings.base_url.path()),
        headers,
        body,
    })
}

impl Wire {
    /// The name as it is written in [`fluffy_contract::model::Opaque`].
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Responses => "responses",
            Self::Chat => "chat",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }

    /// The header that carries the key, and what stands before the key in it.
    #[must_use]
    pub const fn key_header(self) -> (&'static str, &'static str) {
        match self {
            Self::Responses | Self::Chat => ("authorization", "Bearer "),
            Self::Anthropic => ("x-api-key", ""),
            Self::Gemini => ("x-goog-api-key", ""),
        }
    }
}

/// Turns the bytes of one answer into events, in whatever pieces they come.
///
/// After [`ModelEvent::Done`] or [`ModelEvent::Error`] nothing follows.
#[derive(Debug)]
pub struct Decoder {
    reader: EventReader,
    format: Box<dyn Format>,
    /// Who answers.
    model: String,
    has_ended: bool,
}

/// One wire format's reading side.
trait Format: Send + std::fmt::Debug {
    /// Takes one event of the stream.
    fn read(&mut self, event: &StreamEvent, out: &mut Vec<ModelEvent>);

    /// The body ended where it may end, or not.
    fn finish(&mut self, out: &mut Vec<ModelEvent>);
}

impl Decoder {
    /// A decoder for the answer to this turn.
    #[must_use]
    pub fn new(wire: Wire, turn: &Turn) -> Self {
        let names = ToolNames::of(turn);
        let calls = Calls::after(turn);
        let format: Box<dyn Format> = match wire {
            Wire::Responses => Box::new(responses::Reader::new(names, calls)),
            Wire::Chat => Box::new(chat::Reader::new(names, calls)),
            Wire::Anthropic => Box::new(anthropic::Reader::new(names, calls)),
            Wire::Gemini => Box::new(gemini::Reader::new(names, calls)),
        };
        Self {
            reader: EventReader::new(),
            format,
            model: turn.model.clone(),
            has_ended: false,
        }
    }

    /// The events that these bytes complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<ModelEvent> {
        let mut out = Vec::new();
        if self.has_ended {
            return out;
        }
        match self.reader.feed(bytes) {
            Ok(events) => {
                for event in &events {
                    self.format.read(event, &mut out);
                }
            }
            Err(_) => out.push(malformed("an event is larger than 8 MiB")),
        }
        self.cut(out)
    }

    /// The last events, now that the body has ended.
    pub fn finish(&mut self) -> Vec<ModelEvent> {
        let mut out = Vec::new();
        if self.has_ended {
            return out;
        }
        self.format.finish(&mut out);
        if !out.iter().any(is_last) {
            out.push(ModelEvent::Error(ModelFault {
                kind: FaultKind::Network,
                message: "the answer ended before it was complete".to_owned(),
                retryable: Retry::Later,
            }));
        }
        self.cut(out)
    }

    /// Whether the last event was given out.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn cut(&mut self, mut out: Vec<ModelEvent>) -> Vec<ModelEvent> {
        if let Some(last) = out.iter().position(is_last) {
            self.has_ended = true;
            out.truncate(last + 1);
        }
        for opaque in out.iter_mut().filter_map(opaque_of) {
            opaque.model.clone_from(&self.model);
        }
        out
    }
}

fn opaque_of(event: &mut ModelEvent) -> Option<&mut Opaque> {
    match event {
        ModelEvent::TextEnd { opaque } => Some(opaque),
        ModelEvent::ReasoningEnd { opaque } | ModelEvent::ToolCallEnd { opaque, .. } => {
            opaque.as_mut()
        }
        _ => None,
    }
}

fn is_last(event: &ModelEvent) -> bool {
    matches!(event, ModelEvent::Done { .. } | ModelEvent::Error(_))
}

/// The fault for bytes that are not the format. Worth another try: most often
/// something between us and the provider cut or replaced the answer.
fn malformed(what: &str) -> ModelEvent {
    ModelEvent::Error(ModelFault {
        kind: FaultKind::Malformed,
        message: what.to_owned(),
        retryable: Retry::Later,
    })
}

/// The JSON of an event, or the fault that there is none.
fn parse(event: &StreamEvent, out: &mut Vec<ModelEvent>) -> Option<Value> {
    match serde_json::from_str(&event.data) {
        Ok(value) => Some(value),
        Err(_) => {
            out.push(malformed("an event of the answer is not JSON"));
            None
        }
    }
}

/// Arguments as they are sent back: an object, whatever the model made up.
fn arguments_of(call: &ToolCall) -> Value {
    match &call.arguments {
        object @ Value::Object(_) => object.clone(),
        other => serde_json::json!({"invalid": other}),
    }
}

fn check_model_name(model: &str) -> Result<(), EncodeTurnError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:/@+".contains(c);
    let is_fine = (1..=MAX_MODEL_NAME).contains(&model.len())
        && model.chars().all(allowed)
        && !model.split('/').any(|part| part.is_empty() || part == "..");
    match is_fine {
        true => Ok(()),
        false => Err(EncodeTurnError::ModelName {
            model: model.chars().take(64).collect(),
        }),
    }
}

/// Every result needs a call before it, and every call a result after it.
fn check_results(turn: &Turn) -> Result<(), EncodeTurnError> {
    let (mut calls, mut open) = (BTreeSet::new(), BTreeSet::new());
    for part in turn.messages.iter().flat_map(|message| &message.parts) {
        match part {
            Part::ToolCall(call) => {
                calls.insert(call.id.as_str());
                open.insert(call.id.as_str());
            }
            Part::ToolResult { call, .. } if !calls.contains(call.as_str()) => {
                let call = call.clone();
                return Err(EncodeTurnError::OrphanResult { call });
            }
            Part::ToolResult { call, .. } => {
                open.remove(call.as_str());
            }
            Part::Text { .. } | Part::Reasoning { .. } => {}
        }
    }
    match open.first() {
        Some(call) => Err(EncodeTurnError::OpenCall {
            call: (*call).to_owned(),
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
