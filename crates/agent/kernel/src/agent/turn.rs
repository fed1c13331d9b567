//! One turn: what the model is sent, and what becomes of its answer.

use std::sync::{Mutex, PoisonError};

use fluffy_contract::model::{FaultKind, Message, Part, Role, Turn};
use fluffy_contract::tool::Need;
use fluffy_policy::{Context, Permit};
use fluffy_tasks::Kind;
use fluffy_tools::budget::Charge;

use super::{Agent, DriveError, count_tokens, explain};
use crate::ask::{AskError, Whole, ask};
use crate::event::{AgentEvent, SessionResult};
use crate::history::{ANSWER_TOKENS, shorten, visible};
use crate::plugged;
use crate::prompt::{Prompt, render};
use crate::router::RouteError;
use crate::session::{Answered, Fact};

/// What rules call a recording; a path is no name of a model.
const RECORDING: &str = "replay/recording";

/// Why the model gave no answer.
#[derive(Debug, thiserror::Error)]
enum NoAnswer {
    #[error("{0}")]
    Refused(String),
    #[error("a decision could not be recorded")]
    NotRecorded(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(transparent)]
    Asked(AskError),
}

impl Agent {
    /// Lets a summary stand for older messages when there are too many.
    pub(super) async fn make_room(&mut self) -> Result<(), DriveError> {
        let budget = self.room();
        self.sizes.grow(&self.session.messages, &tokens);
        let shortened = shorten(
            &self.session.messages,
            &self.sizes,
            &self.session.shortened,
            budget,
            &tokens,
        );
        if let Some(shortened) = shortened {
            self.record(Fact::Shortened(shortened)).await?;
        }
        Ok(())
    }

    /// Tokens that history may have.
    fn room(&self) -> u64 {
        let fixed = tokens(&self.prompt()) + ANSWER_TOKENS;
        self.ground.window.saturating_sub(fixed).max(ANSWER_TOKENS)
    }

    fn prompt(&self) -> String {
        let workflow = &self.session.workflow;
        render(&Prompt {
            mode: workflow.mode(),
            state: workflow.state(),
            tests: &self.tests_line(),
            tools: &self.ground.registry.summaries(),
            instructions: &self.ground.instructions,
            skills: &self.ground.skills,
            pins: &self.session.pins,
            task: &self.session.task,
        })
    }

    /// Asks the model; how it ends if there is no answer, and why.
    pub(super) async fn turn(&mut self) -> Result<Result<(), (SessionResult, String)>, DriveError> {
        self.publish(AgentEvent::TurnStarted {
            turn: self.session.turns + 1,
        });
        let permit = match self.permit_model().await {
            Ok(permit) => Mutex::new(Some(permit)),
            Err(RouteError::Refused(refusal)) => {
                return Ok(Err((SessionResult::Failed, refusal.for_people())));
            }
            Err(RouteError::NotRecorded(error)) => return Err(DriveError::Route(error)),
        };
        let work = self.work_of(Kind::AiGenerate, Some("ai-provider"));
        let task = work.id;
        let asking = || self.ask_model(&permit);
        let whole = tokio::select! {
            whole = self.ground.slots.run(work, asking) => whole,
            () = self.ground.stop.asked() => return Ok(Ok(())),
        };
        let whole = match whole {
            Ok(whole) => whole,
            Err(error) => return Ok(Err((SessionResult::Failed, explain(&error)))),
        };
        let whole = match whole {
            Ok(whole) => whole,
            Err(NoAnswer::Refused(why)) => return Ok(Err((SessionResult::Failed, why))),
            Err(NoAnswer::NotRecorded(error)) => return Err(DriveError::Route(error)),
            Err(NoAnswer::Asked(error)) => return Ok(Err(self.no_answer(error))),
        };
        self.answered_by = Some(task);
        let used = whole
            .usage
            .input_tokens
            .saturating_add(whole.usage.output_tokens);
        let model = whole.model.unwrap_or_else(|| self.session.model.clone());
        let cost = self.ground.prices.cost(&model, &whole.usage);
        let cost_micros = cost.map(fluffy_models::price::Cost::micro_dollars);
        let talked_only = !whole
            .parts
            .iter()
            .any(|part| matches!(part, Part::ToolCall(_)));
        let answered = Answered {
            parts: whole.parts,
            model,
            usage: whole.usage,
            cost_micros,
            stop: whole.stop,
        };
        self.record(Fact::Answered(answered)).await?;
        self.publish(AgentEvent::Usage(self.session.spent));
        if !talked_only {
            self.nudges = 0;
        }
        // Both are looked at before the next turn.
        let _ = self.budget.charge(Charge::Tokens(used));
        let _ = self
            .budget
            .charge(Charge::Money(cost_micros.unwrap_or_default()));
        Ok(Ok(()))
    }

    /// Asks the model with the permit that there is, or, where an earlier try
    /// had to end, with another.
    async fn ask_model(&self, permit: &Mutex<Option<Permit>>) -> Result<Whole, NoAnswer> {
        let first = permit.lock().unwrap_or_else(PoisonError::into_inner).take();
        let permit = match first {
            Some(permit) => permit,
            None => {
                let reason = "memory was needed".to_owned();
                self.publish(AgentEvent::TurnRestarted { reason });
                let again = self.permit_model().await;
                again.map_err(|error| match error {
                    RouteError::Refused(refusal) => NoAnswer::Refused(refusal.for_people()),
                    RouteError::NotRecorded(error) => NoAnswer::NotRecorded(error),
                })?
            }
        };
        let turn = self.next_turn();
        let whole = ask(&self.ground.provider, permit, turn, &self.ground.hub).await;
        whole.map_err(NoAnswer::Asked)
    }

    /// What follows when a model does not answer, or a recording cannot.
    fn no_answer(&self, error: AskError) -> (SessionResult, String) {
        match error {
            AskError::Start(error) => (SessionResult::Failed, with_cause(&error)),
            AskError::Broken(fault) if fault.kind == FaultKind::Ended => {
                (SessionResult::Unfinished, fault.message)
            }
            AskError::Broken(fault) if fault.kind == FaultKind::Diverged => {
                let (place, diff) = fault.message.split_once('\n').unwrap_or_default();
                self.publish(AgentEvent::ReplayDiverged {
                    place: place.to_owned(),
                    diff: diff.to_owned(),
                });
                (SessionResult::Diverged, place.to_owned())
            }
            error @ (AskError::Broken(_) | AskError::Unfinished) => {
                (SessionResult::Failed, error.to_string())
            }
        }
    }

    fn next_turn(&self) -> Turn {
        let prompt = Message {
            role: Role::System,
            parts: vec![Part::Text {
                text: self.prompt(),
                opaque: None,
            }],
        };
        let seen = visible(&self.session.messages, &self.session.shortened);
        let (_, model) = split_model(&self.session.model);
        Turn {
            model: model.to_owned(),
            messages: std::iter::once(prompt).chain(seen).collect(),
            tools: self.ground.registry.descriptions().cloned().collect(),
            max_output_tokens: u32::try_from(ANSWER_TOKENS * 4).unwrap_or(u32::MAX),
            effort: None,
            conversation: Some(self.session.id.to_string()),
        }
    }

    async fn permit_model(&self) -> Result<Permit, RouteError> {
        let course = self.course();
        let router = self.router(&course);
        let model = &self.session.model;
        let is_plugged = model.starts_with(plugged::PREFIX);
        let context = match is_plugged {
            true => plugged::context(self.context()),
            false => Context {
                template: Some("ai-provider".to_owned()),
                ..self.context()
            },
        };
        let (action, resource) = match &self.ground.address {
            Some(address) => ("net.connect", address.as_str()),
            // What the plugin reaches is decided in its own name.
            None if is_plugged => ("model.generate", model.as_str()),
            // A recording is played back: nothing is reached.
            None => ("model.generate", RECORDING),
        };
        let need = Need {
            action: action.to_owned(),
            resource: Some(resource.to_owned()),
        };
        router
            .permit_in(&self.ground.desk, "model", &need, &context)
            .await
    }
}

/// The provider and its model.
fn split_model(model: &str) -> (&str, &str) {
    model.split_once('/').unwrap_or(("replay", model))
}

fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Tokens of a text, by the one local tokenizer.
pub(super) fn tokens(text: &str) -> u64 {
    count_tokens(text) as u64
}
