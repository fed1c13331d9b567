//! A started plugin, whatever protocol it speaks.
//!
//! Three protocols implement this; whoever supervises plugins knows only this.
//! What comes through it is data of somebody nobody trusts: bounded here, made
//! harmless where it is shown.

use std::time::Duration;

use fluffy_base::id::SandboxId;
use fluffy_contract::BoxFuture;
use fluffy_contract::tool::{ForeignTool, ToolOutput};
use serde_json::Value;

use crate::go_plugin::Channel;

/// The most bytes of one message of a plugin, in any protocol.
pub const MAX_MESSAGE: usize = 4 << 20;

/// A started plugin.
pub trait Connection: Send + Sync {
    /// The sandbox it runs in.
    fn sandbox(&self) -> SandboxId;

    /// Its tools as of now.
    fn tools(&self) -> Vec<ForeignTool>;

    /// Carries one call out. Dropping the future cancels the call.
    fn call<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a Value,
    ) -> BoxFuture<'a, Result<ToolOutput, CallPluginError>>;

    /// The way to its other services, for plugins of other types than `tool`.
    fn channel(&self) -> Option<Channel> {
        None
    }

    /// Takes its secrets out of what it said on that way.
    fn free(&self, _said: &mut String) {}

    /// Asks whether it is well; its own word, so never more than a hint.
    fn health(&self) -> BoxFuture<'_, Result<(), CallPluginError>>;

    /// Asks it to end, and ends it when the time is over. May be called again.
    fn stop(&self, grace: Duration) -> BoxFuture<'_, ()>;

    /// Waits until it has ended by whatever cause.
    fn gone(&self) -> BoxFuture<'_, Gone>;
}

/// How a plugin ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gone {
    /// It was asked to.
    Stopped,
    /// By itself, in these words of ours.
    Crashed {
        /// What is known: an exit code, a signal, a limit.
        how: String,
    },
}

/// Why a plugin gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallPluginError {
    /// It has no such tool.
    #[error("the plugin has no tool `{tool}`")]
    NoSuchTool {
        /// What was called.
        tool: String,
    },
    /// It refused the call itself, in its own words.
    #[error("the plugin refused the call: {text}")]
    Refused {
        /// Its words, cut; not harmless yet.
        text: String,
    },
    /// It did not answer in time.
    #[error("the plugin did not answer within {} ms", after.as_millis())]
    Late {
        /// How long was waited.
        after: Duration,
    },
    /// Its answer was not one.
    #[error("the plugin answered with nonsense: {what}")]
    Nonsense {
        /// What was wrong with it.
        what: String,
    },
    /// It did something that has no result, and its instance ended.
    #[error("the plugin trapped: {how}")]
    Trapped {
        /// What it did.
        how: String,
    },
    /// A limit ended the call: fuel, a deadline, memory, size.
    #[error("the plugin exceeded its {limit}")]
    Limit {
        /// Which.
        limit: &'static str,
    },
    /// It has ended.
    #[error("the plugin has ended: {how}")]
    Gone {
        /// What is known about it.
        how: String,
    },
}

/// Why a plugin could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartPluginError {
    /// Its sandbox could not be made, or its program not be run in it.
    #[error("its sandbox could not be started")]
    Sandbox {
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It ended before it was ready.
    #[error("it ended before it was ready: {how}")]
    Ended {
        /// How, with the last of what it said.
        how: String,
    },
    /// It was not ready in time.
    #[error("it was not ready within {} s", after.as_secs())]
    Late {
        /// How long was waited.
        after: Duration,
    },
    /// It does not speak the protocol it declares.
    #[error("it does not speak `{protocol}`: {what}")]
    Protocol {
        /// Which one.
        protocol: &'static str,
        /// What it did instead.
        what: String,
    },
}
