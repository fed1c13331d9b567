//! The four formats: requests are checked, replies are written.
//!
//! Each format is a file with the same two functions. What the vendor refuses
//! is refused, with the vendor's body. Never shares code with `fluffy-models`.

mod anthropic;
mod chat;
mod gemini;
mod responses;

use serde_json::Value;

use crate::conversation::Conversation;
use crate::reply::Reply;

/// A wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// OpenAI's Responses API.
    Responses,
    /// OpenAI's Chat Completions.
    Chat,
    /// Anthropic's Messages API.
    Anthropic,
    /// Google's `streamGenerateContent`.
    Gemini,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Responses, Self::Chat, Self::Anthropic, Self::Gemini];

    /// The format that is spoken at a path.
    #[must_use]
    pub fn of_path(path: &str) -> Option<Self> {
        let path = path.split('?').next().unwrap_or(path);
        match path {
            "/v1/responses" => Some(Self::Responses),
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/messages" => Some(Self::Anthropic),
            path if path.ends_with(":streamGenerateContent") => Some(Self::Gemini),
            _ => None,
        }
    }

    /// The path that base URLs of this format end with.
    #[must_use]
    pub const fn base_path(self) -> &'static str {
        match self {
            Self::Responses | Self::Chat => "/v1",
            Self::Anthropic | Self::Gemini => "",
        }
    }

    /// The header that carries the key, and what stands before it.
    #[must_use]
    pub const fn key_header(self) -> (&'static str, &'static str) {
        match self {
            Self::Responses | Self::Chat => ("authorization", "Bearer "),
            Self::Anthropic => ("x-api-key", ""),
            Self::Gemini => ("x-goog-api-key", ""),
        }
    }

    /// What a request says.
    ///
    /// # Errors
    /// The vendor would refuse it; the text says why.
    pub fn read(self, path: &str, body: &Value) -> Result<Conversation, String> {
        match self {
            Self::Responses => responses::read(body),
            Self::Chat => chat::read(body),
            Self::Anthropic => anthropic::read(body),
            Self::Gemini => gemini::read(path, body),
        }
    }

    /// The events of an answer, each as it stands in the stream.
    #[must_use]
    pub fn events(self, model: &str, reply: &Reply) -> Vec<String> {
        match self {
            Self::Responses => responses::events(model, reply),
            Self::Chat => chat::events(model, reply),
            Self::Anthropic => anthropic::events(model, reply),
            Self::Gemini => gemini::events(model, reply),
        }
    }

    /// The body of an error.
    #[must_use]
    pub fn error_body(self, status: u16, message: &str) -> String {
        match self {
            Self::Responses | Self::Chat => chat::error_body(status, message),
            Self::Anthropic => anthropic::error_body(status, message),
            Self::Gemini => gemini::error_body(status, message),
        }
        .to_string()
    }

    /// The event that says that the answer failed.
    #[must_use]
    pub fn error_event(self) -> String {
        let message = "the model is overloaded";
        match self {
            Self::Responses => responses::error_event(message),
            Self::Chat => format!("data: {}\n\n", chat::error_body(500, message)),
            Self::Anthropic => {
                format!(
                    "event: error\ndata: {}\n\n",
                    anthropic::error_body(529, message)
                )
            }
            Self::Gemini => format!("data: {}\r\n\r\n", gemini::error_body(503, message)),
        }
    }

    /// A sign of life between events.
    #[must_use]
    pub const fn keep_alive(self) -> &'static str {
        match self {
            Self::Responses | Self::Chat => ": keep-alive\n\n",
            Self::Anthropic => "event: ping\ndata: {\"type\": \"ping\"}\n\n",
            Self::Gemini => ":\r\n\r\n",
        }
    }
}

/// A text in pieces of a few characters, as models write.
fn pieces(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    characters
        .chunks(7)
        .map(|piece| piece.iter().collect())
        .collect()
}

/// Whether a name is one that providers take.
fn is_tool_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    (1..=64).contains(&name.len()) && name.chars().all(allowed)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value
        .get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Sets a field of an object.
fn set(object: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(key.to_owned(), value.into());
    }
}
