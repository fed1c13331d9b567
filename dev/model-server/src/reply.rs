//! What the server says: one answer, how it is delivered, where it breaks.
//!
//! The same reply can be said in every format. Plain data, readable from a
//! script file. Never knows a wire format. Next: `wire`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One answer of the model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reply {
    /// What it is made of, in order.
    pub pieces: Vec<Piece>,
    /// What it counts; none leaves the counts out.
    pub tokens: Option<Tokens>,
    /// Why it ends. Calls make it end with calls.
    pub stop: Stop,
    /// How it breaks, if it does.
    pub fault: Option<Fault>,
    /// In which pieces it goes out.
    pub delivery: Delivery,
    /// Comments and pings between the events.
    pub keep_alives: bool,
    /// Where it differs from the vendor, as imitators do.
    pub quirks: Vec<Quirk>,
}

/// One piece of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Piece {
    /// Text.
    Text(String),
    /// Visible reasoning.
    Reasoning(String),
    /// A tool call, by our dotted name.
    Call {
        /// The tool.
        name: String,
        /// Its arguments.
        arguments: Value,
    },
}

/// What an answer counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tokens {
    /// Read, in all.
    pub input: u64,
    /// Of these from a cache.
    pub cached: u64,
    /// Of these into a cache, where the format says so.
    pub cache_write: u64,
    /// Written, in all.
    pub output: u64,
    /// Of these for reasoning.
    pub reasoning: u64,
}

/// Why an answer ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// All is said, or calls are waiting.
    #[default]
    Natural,
    /// No tokens are left.
    Length,
    /// It was filtered.
    Refused,
}

/// In which pieces an answer goes out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// One event at a time.
    #[default]
    Events,
    /// All at once.
    Whole,
    /// One byte at a time.
    Bytes,
    /// Pieces of this many bytes, whatever they cut.
    Pieces(usize),
    /// One event at a time, with a pause before each.
    Slow {
        /// How long.
        millis: u64,
    },
}

/// How an answer breaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Another status than 200, with the vendor's body for it.
    Status {
        /// The status.
        status: u16,
        /// More headers, such as `retry-after`.
        headers: Vec<(String, String)>,
    },
    /// The vendor's error event after this many events, and then the end.
    ErrorAfter {
        /// How many.
        events: usize,
    },
    /// An event that is no JSON after this many events.
    WrongJsonAfter {
        /// How many.
        events: usize,
    },
    /// The connection ends after this many events.
    DieAfter {
        /// How many.
        events: usize,
    },
    /// The connection ends before anything was said.
    DieAtOnce,
    /// Nothing more comes after this many events, not even an end.
    HangAfter {
        /// How many.
        events: usize,
    },
    /// Nothing comes at all.
    HangAtOnce,
    /// The body is cut: complete for HTTP, not for the format.
    CutAfter {
        /// How many events.
        events: usize,
    },
}

/// How an imitator differs; known to the chat format only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quirk {
    /// Calls have no ids.
    NoIds,
    /// Every call has the index 0.
    IndexAlwaysZero,
    /// Calls have no index.
    NoIndex,
    /// Arguments come whole.
    WholeArguments,
    /// Arguments come as an object.
    ObjectArguments,
    /// There is no `[DONE]`.
    NoDone,
    /// The reason is `stop` even after calls.
    StopAfterCalls,
    /// Reasoning is in `reasoning`, not in `reasoning_content`.
    ReasoningField,
}

impl Reply {
    /// An answer of text alone.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::default().with(Piece::Text(text.to_owned()))
    }

    /// An answer of one call.
    #[must_use]
    pub fn call(name: &str, arguments: Value) -> Self {
        Self::default().and_call(name, arguments)
    }

    /// An answer that fails with this fault, before or in the middle of text.
    #[must_use]
    pub fn failing(fault: Fault) -> Self {
        Self {
            fault: Some(fault),
            ..Self::text("this text is never completed, however often it is asked for")
        }
    }

    /// One more piece.
    #[must_use]
    pub fn with(mut self, piece: Piece) -> Self {
        self.pieces.push(piece);
        self
    }

    /// One more call.
    #[must_use]
    pub fn and_call(self, name: &str, arguments: Value) -> Self {
        let name = name.to_owned();
        self.with(Piece::Call { name, arguments })
    }

    /// With counts.
    #[must_use]
    pub const fn counting(mut self, tokens: Tokens) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Delivered like this.
    #[must_use]
    pub const fn delivered(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// Whether it makes any calls.
    #[must_use]
    pub fn has_calls(&self) -> bool {
        self.pieces
            .iter()
            .any(|piece| matches!(piece, Piece::Call { .. }))
    }

    /// Whether it differs in this way.
    #[must_use]
    pub fn has(&self, quirk: Quirk) -> bool {
        self.quirks.contains(&quirk)
    }
}

/// The same with the keys of all objects in order: what a build of other crates
/// makes of their order must not be seen in ids that are made from it.
pub(crate) fn in_order(mut reply: Reply) -> Reply {
    for piece in &mut reply.pieces {
        if let Piece::Call { arguments, .. } = piece {
            *arguments = sorted(arguments.take());
        }
    }
    reply
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let fields = object.into_iter().map(|(key, value)| (key, sorted(value)));
            let fields: std::collections::BTreeMap<String, Value> = fields.collect();
            fields.into_iter().collect()
        }
        Value::Array(items) => items.into_iter().map(sorted).collect(),
        plain => plain,
    }
}
