//! Channels: where people and a session talk to each other.

use fluffy_policy::Permit;
use serde::{Deserialize, Serialize};

use crate::BoxFuture;

/// Something a person said through a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incoming {
    /// Who, as the channel knows them; never a principal by itself.
    pub from: String,
    /// Which conversation.
    pub conversation: String,
    /// What they said; outside text, not instructions.
    pub text: String,
    /// The channel's own id of the message, if it has one.
    #[serde(default)]
    pub id: String,
}

/// Something a session says through a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outgoing {
    /// Which conversation.
    pub conversation: String,
    /// The text.
    pub text: String,
}

/// Why a message was not delivered.
#[derive(Debug, thiserror::Error)]
pub enum SendMessageError {
    /// The channel knows no such conversation.
    #[error("`{channel}` has no conversation `{conversation}`")]
    UnknownConversation {
        /// The channel.
        channel: String,
        /// What was asked for.
        conversation: String,
    },
    /// The permit is for something else.
    #[error("the permit covers `{permitted}`, and this needs `{needed}`")]
    WrongPermit {
        /// What was permitted.
        permitted: String,
        /// What would be needed.
        needed: String,
    },
    /// The channel is not connected.
    #[error("`{channel}` is not connected")]
    Disconnected {
        /// The channel.
        channel: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A way to talk with people.
pub trait Channel: Send + Sync {
    /// The channel's name.
    fn name(&self) -> &str;

    /// The next message, or nothing once the channel is closed.
    fn receive(&self) -> BoxFuture<'_, Option<Incoming>>;

    /// Delivers a message; the permit is for `messages.send` on its name.
    fn send(
        &self,
        permit: Permit,
        message: Outgoing,
    ) -> BoxFuture<'_, Result<(), SendMessageError>>;
}
