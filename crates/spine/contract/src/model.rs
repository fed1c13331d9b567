//! Model providers: one stream of events, whatever the wire format.

use fluffy_policy::Permit;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::BoxFuture;
use crate::tool::ToolDescription;

/// Who said something in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Our own instructions.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

/// One entry of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who said it.
    pub role: Role,
    /// The text.
    pub content: String,
    /// The tool calls an assistant message made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<String>,
}

/// A call as the model made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The provider's id of this call.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments, parsed.
    pub arguments: Value,
}

/// One request to a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// The model's name at its provider.
    pub model: String,
    /// The conversation so far.
    pub messages: Vec<Message>,
    /// What it may call.
    pub tools: Vec<ToolDescription>,
    /// The most tokens it may answer with.
    pub max_output_tokens: u32,
}

/// What a model's answer is made of, in the order it arrives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ModelEvent {
    /// A piece of text.
    TextDelta {
        /// The piece.
        text: String,
    },
    /// A piece of visible reasoning.
    ReasoningDelta {
        /// The piece.
        text: String,
    },
    /// A tool call begins.
    ToolCallStart {
        /// The provider's id of this call.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// A piece of a tool call's arguments, as JSON text.
    ToolCallDelta {
        /// Which call.
        id: String,
        /// The piece.
        arguments: String,
    },
    /// A tool call is complete.
    ToolCallEnd {
        /// Which call.
        id: String,
    },
    /// What the turn has cost so far.
    Usage {
        /// Tokens read.
        input_tokens: u64,
        /// Tokens read from the provider's cache, part of the input.
        cached_tokens: u64,
        /// Tokens written.
        output_tokens: u64,
    },
    /// The answer is complete.
    Done {
        /// Why it ended.
        reason: StopReason,
    },
    /// The answer broke off.
    Error {
        /// What the provider said.
        message: String,
        /// Whether the same turn may succeed later.
        retryable: Retry,
    },
}

/// Why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It had said what it wanted.
    EndTurn,
    /// It wants tools to be run.
    ToolCalls,
    /// It reached the limit of tokens.
    Length,
    /// The provider refused to go on.
    Refused,
}

/// Whether trying again makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// Yes, after a while.
    Later,
    /// No.
    Never,
}

/// Why no stream began.
#[derive(Debug, thiserror::Error)]
pub enum StartTurnError {
    /// The provider answered with a refusal.
    #[error("`{provider}` refused the turn with status {status}")]
    Refused {
        /// The provider.
        provider: String,
        /// Its HTTP status.
        status: u16,
    },
    /// The provider could not be reached.
    #[error("`{provider}` could not be reached")]
    Unreachable {
        /// The provider.
        provider: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A running answer. Dropping it cancels the turn.
pub trait ModelStream: Send {
    /// The next event, or nothing after the last.
    fn next(&mut self) -> BoxFuture<'_, Option<ModelEvent>>;
}

/// Something that answers turns.
pub trait ModelProvider: Send + Sync {
    /// The provider's name, as in `provider/model`.
    fn name(&self) -> &str;

    /// Starts a turn; the permit is for `net.connect` to the provider's host.
    fn start(
        &self,
        permit: Permit,
        turn: Turn,
    ) -> BoxFuture<'_, Result<Box<dyn ModelStream>, StartTurnError>>;
}
