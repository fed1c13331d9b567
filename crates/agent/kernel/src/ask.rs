//! One turn of a model: sent, shown as it comes, put together.
//!
//! Shows pieces as they arrive and keeps nothing that the model did not finish.
//! Runs no tool; what the answer means is for `agent`.

use std::sync::Arc;

use fluffy_contract::model::{
    ModelEvent, ModelFault, ModelProvider, Part, StartTurnError, StopReason, Turn, Usage,
};
use fluffy_models::Answer;
use fluffy_models::answer::End;
use fluffy_policy::Permit;

use crate::event::AgentEvent;
use crate::hub::Hub;

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Whole {
    /// What it said, thought and wants to call.
    pub(crate) parts: Vec<Part>,
    /// Who answered, where it was not the one that was asked.
    pub(crate) model: Option<String>,
    /// What it used.
    pub(crate) usage: Usage,
    /// Why it stopped.
    pub(crate) stop: StopReason,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// No turn began.
    #[error(transparent)]
    Start(#[from] StartTurnError),
    /// The answer broke off, and trying again did not help.
    #[error("the model's answer broke off: {}", .0.message)]
    Broken(ModelFault),
    /// The stream ended without an end.
    #[error("the model's answer ended without its end")]
    Unfinished,
}

/// Sends a turn and waits for the whole answer; dropping this ends the turn.
///
/// # Errors
/// It could not be sent, or broke off.
pub(crate) async fn ask(
    provider: &Arc<dyn ModelProvider>,
    permit: Permit,
    turn: Turn,
    hub: &Hub,
) -> Result<Whole, AskError> {
    let mut stream = provider.start(permit, turn).await?;
    let mut answer = Answer::default();
    let mut model = None;
    while let Some(event) = stream.next().await {
        answer.apply(&event);
        match event {
            ModelEvent::TextDelta { text } => hub.publish(AgentEvent::TextDelta { text }),
            ModelEvent::ReasoningDelta { text } => {
                hub.publish(AgentEvent::ReasoningDelta { text });
            }
            ModelEvent::Restarted {
                model: other,
                because,
            } => {
                hub.publish(AgentEvent::TurnRestarted { reason: because });
                model = Some(other);
            }
            ModelEvent::Waiting { millis, because } => hub.publish(AgentEvent::Note {
                text: format!("waiting {} s: {because}", millis.div_ceil(1_000)),
            }),
            ModelEvent::TextEnd { .. }
            | ModelEvent::ReasoningEnd { .. }
            | ModelEvent::ToolCallStart { .. }
            | ModelEvent::ToolCallDelta { .. }
            | ModelEvent::ToolCallEnd { .. }
            | ModelEvent::Usage(_)
            | ModelEvent::Done { .. }
            | ModelEvent::Error(_) => {}
        }
    }
    let usage = answer.usage().unwrap_or_default();
    match answer.end().cloned() {
        Some(End::Done(stop)) => Ok(Whole {
            parts: answer.into_message().parts,
            model,
            usage,
            stop,
        }),
        Some(End::Broken(fault)) => Err(AskError::Broken(fault)),
        None => Err(AskError::Unfinished),
    }
}
