//! Model providers: one stream of events, whatever the wire format.
//!
//! A conversation is a list of messages, a message a list of parts in the order
//! the model made them, because two vendors refuse a history whose reasoning
//! was moved. What only one wire format understands travels as [`Opaque`] and
//! goes back unchanged. Never holds logic; `agent/models` speaks the formats.

use fluffy_policy::Permit;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::BoxFuture;
use crate::tool::{ToolDescription, ToolOutcome};

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

/// A running answer. Dropping it cancels the turn.
pub trait ModelStream: Send {
    /// The next event, or nothing after the last.
    fn next(&mut self) -> BoxFuture<'_, Option<ModelEvent>>;
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
    /// How hard it should think; none is the provider's own choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// The same text for every turn of a conversation, for provider caches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
}

/// How hard a model should think before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    /// As little as it can.
    Low,
    /// Some.
    Medium,
    /// A lot.
    High,
}

/// One entry of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who said it.
    pub role: Role,
    /// What, in order.
    pub parts: Vec<Part>,
}

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
    /// The results of tool calls.
    Tool,
}

/// One piece of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    /// Text for the reader.
    Text {
        /// The text.
        text: String,
        /// What the provider wants to see again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        opaque: Option<Opaque>,
    },
    /// What the model thought before it went on.
    Reasoning {
        /// The readable part, often a summary, often empty.
        text: String,
        /// What the provider wants to see again: a signature, an encrypted item.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        opaque: Option<Opaque>,
    },
    /// A call the model made.
    ToolCall(ToolCall),
    /// What came back from a call.
    ToolResult {
        /// Which call it answers.
        call: String,
        /// What the model gets to read.
        content: String,
        /// Whether the tool calls it a success.
        outcome: ToolOutcome,
    },
}

/// A call as the model made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The provider's id of this call, or ours where it gives none.
    pub id: String,
    /// The tool's name: `fs.read`.
    pub name: String,
    /// The arguments, parsed.
    pub arguments: Value,
    /// What the provider wants to see again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opaque: Option<Opaque>,
}

/// What only one wire format understands; goes back to it unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opaque {
    /// The wire format that made it; no other one is sent it.
    pub wire: String,
    /// The model that made it, where that is known: some are sent only their
    /// own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Whatever it is.
    pub value: Value,
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
    /// The text so far is a part of its own, with something to send back.
    TextEnd {
        /// What the provider wants to see again.
        opaque: Opaque,
    },
    /// A piece of visible reasoning.
    ReasoningDelta {
        /// The piece.
        text: String,
    },
    /// A block of reasoning is complete.
    ReasoningEnd {
        /// What the provider wants to see again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        opaque: Option<Opaque>,
    },
    /// A tool call begins. Several may be open at a time.
    ToolCallStart {
        /// The provider's id of this call, or ours where it gives none.
        id: String,
        /// The tool's name: `fs.read`.
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
        /// What the provider wants to see again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        opaque: Option<Opaque>,
    },
    /// What the turn has used so far, in all.
    Usage(Usage),
    /// Nothing happens for a while; it goes on by itself.
    Waiting {
        /// For how long.
        millis: u64,
        /// Why.
        because: String,
    },
    /// The answer begins again: what came before is void, though paid for.
    Restarted {
        /// Who answers now, as `provider/model`.
        model: String,
        /// Why.
        because: String,
    },
    /// The answer is complete.
    Done {
        /// Why it ended.
        reason: StopReason,
    },
    /// The answer broke off.
    Error(ModelFault),
}

/// Tokens of one turn. What a provider does not count is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens read, whether from a cache or not.
    pub input_tokens: u64,
    /// Tokens read from the provider's cache, part of the input.
    #[serde(default)]
    pub cached_tokens: u64,
    /// Tokens written to the provider's cache, part of the input.
    #[serde(default)]
    pub cache_write_tokens: u64,
    /// Tokens written, reasoning included.
    pub output_tokens: u64,
    /// Tokens of reasoning, part of the output.
    #[serde(default)]
    pub reasoning_tokens: u64,
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

/// Why an answer broke off, or never began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFault {
    /// Which kind, for programs.
    pub kind: FaultKind,
    /// What the provider or the connection said, for people.
    pub message: String,
    /// Whether the same turn may succeed later.
    pub retryable: Retry,
}

/// Kinds of faults that callers treat differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The key is missing, wrong or may not do this.
    Authentication,
    /// The account has no money left.
    Billing,
    /// The conversation does not fit into the model's context.
    ContextTooLong,
    /// Another process or turn changed what the recording was made of.
    Diverged,
    /// A recording has no more to say.
    Ended,
    /// The provider does not accept the request as it is.
    InvalidRequest,
    /// What came back is not the wire format.
    Malformed,
    /// The connection could not be made, or ended too early.
    Network,
    /// There is no such model or path.
    NotFound,
    /// The provider is too busy or failed.
    Overloaded,
    /// Too many requests or tokens for now.
    RateLimited,
    /// Nothing came for too long.
    TimedOut,
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
    /// The permit is for another capability than this turn needs.
    #[error("the permit covers `{permitted}`, `{provider}` needs `net.connect`")]
    WrongPermit {
        /// The provider.
        provider: String,
        /// What was permitted.
        permitted: String,
    },
    /// The turn cannot be sent as it is.
    #[error("`{provider}` cannot be sent this turn")]
    Turn {
        /// The provider.
        provider: String,
        /// What is wrong with it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The process that reaches the provider is gone.
    #[error("`{provider}` could not be reached")]
    Unreachable {
        /// The provider.
        provider: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
