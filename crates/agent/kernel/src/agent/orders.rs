//! What a person orders a session to do, and what they say to it.
//!
//! Obeyed between two steps, never in the middle of one. An order is a
//! person's own word: where policy wants one, it has it. What only looks is
//! answered by `host`.

use std::collections::BTreeMap;

use fluffy_base::id::SessionId;
use fluffy_gate::{Answer, ApproveError, AuthorizeError};
use fluffy_policy::word::{Mode, State};
use fluffy_tools::budget::Resource;
use fluffy_tools::refusal::Refusal;
use fluffy_workflow::machine::{Input, SwitchAnswer};
use tokio::sync::{mpsc, watch};

use super::turn::tokens;
use super::{Agent, DriveError};
use crate::api::{Reply, Status};
use crate::event::{AgentEvent, SessionStarted, VERSION};
use crate::history::shorten;
use crate::host::{Chosen, Errand, Wish};
use crate::session::Fact;

/// How many things can be kept in front of the model.
const MAX_PINS: usize = 32;

/// The longest of them, in bytes.
const MAX_PIN: usize = 4_000;

impl Agent {
    /// Where the session stands, whenever that changes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Where the session stands.
    #[must_use]
    pub fn status(&self) -> Status {
        let workflow = &self.session.workflow;
        let budgets = Resource::ALL.map(|one| {
            let used = match one {
                Resource::Time => self.worked(),
                _ => self.budget.used(one),
            };
            let limit = self.budget.limits().of(one);
            (
                one.word().to_owned(),
                (used / one.unit(), limit / one.unit()),
            )
        });
        Status {
            session: self.session.id,
            mode: workflow.mode(),
            state: workflow.state(),
            model: self.session.model.clone(),
            tier: self.ground.workshop.premises().tier,
            isolation: self.ground.workshop.level(),
            spent: self.session.spent,
            budgets: BTreeMap::from(budgets),
        }
    }

    /// Which session this is.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.session.id
    }

    /// Takes in what the person says.
    ///
    /// # Errors
    /// It cannot be recorded.
    pub async fn say(&mut self, text: String) -> Result<(), DriveError> {
        self.nudges = 0;
        self.record(Fact::Said { text }).await?;
        // What waits for a yes is not what they want any more.
        let waits = matches!(
            self.session.workflow.state(),
            State::Validating | State::Reviewing
        );
        if waits && self.session.pending().is_empty() {
            self.revise().await?;
        }
        Ok(())
    }

    /// Does what is ordered.
    ///
    /// # Errors
    /// It cannot be recorded; then the session cannot go on.
    pub async fn obey(&mut self, wish: Wish) -> Result<Reply, DriveError> {
        match wish {
            Wish::Mode(mode) => self.order_mode(mode).await,
            Wish::Undo => self.undo().await,
            Wish::Pin(text) => self.pin(text).await,
            Wish::Model(chosen) => self.choose(chosen).await,
            Wish::Compact => self.compact().await,
        }
    }

    /// Sees to everything that waits; nothing may be in the middle.
    pub(super) async fn run_errands(
        &mut self,
        errands: &mut mpsc::Receiver<Errand>,
    ) -> Result<(), DriveError> {
        while self.session.pending().is_empty()
            && let Ok(errand) = errands.try_recv()
        {
            match errand {
                Errand::Say(text) => self.say(text).await?,
                Errand::Obey(wish, answer) => {
                    let reply = self.obey(wish).await?;
                    // Whoever ordered it may be gone.
                    let _ = answer.send(Ok(reply));
                }
            }
        }
        Ok(())
    }

    /// What is told first of a session that begins to work.
    pub(super) fn beginning(&self) -> AgentEvent {
        let session = &self.session;
        let premises = self.ground.workshop.premises();
        AgentEvent::SessionStarted(SessionStarted {
            version: VERSION,
            session: session.id,
            task: session.task.clone(),
            mode: match session.begun {
                true => session.workflow.mode(),
                false => session.started.mode,
            },
            model: session.model.clone(),
            tier: premises.tier,
            isolation: self.ground.workshop.level(),
            layer: self.held.layer().id(),
        })
    }

    async fn order_mode(&mut self, to: Mode) -> Result<Reply, DriveError> {
        if to == self.session.workflow.mode() {
            return Ok(done(format!("the mode is {to} already")));
        }
        let (answer, why) = match self.may_switch(to)? {
            Ok(()) => (SwitchAnswer::Allowed, None),
            Err(refusal) => (SwitchAnswer::Refused, Some(refusal.for_people())),
        };
        let from = self.session.workflow.state();
        let budget = self.known.debt.budget();
        let switched = self.step(Input::SwitchMode { to, answer, budget }).await?;
        if let Err(error) = switched {
            return Ok(refused(super::steps::chain(&error)));
        }
        let (mode, state) = {
            let workflow = &self.session.workflow;
            (workflow.mode(), workflow.state())
        };
        if state != from {
            let text = format!("[the kernel] The mode is {mode} now, and the state {state}.");
            self.record(Fact::Said { text }).await?;
        }
        Ok(match (mode == to, why) {
            (true, _) => done(format!("the mode is {mode} now, the state {state}")),
            (false, Some(why)) => refused(format!("{why}; the mode is {mode}")),
            (false, None) => refused(format!(
                "explore is locked until a strict commit; the mode is {mode}"
            )),
        })
    }

    /// A stricter mode needs no leave. For another, where policy wants a
    /// person's word, the order is it, and is recorded as such.
    fn may_switch(&self, to: Mode) -> Result<Result<(), Box<Refusal>>, DriveError> {
        if to == Mode::Strict {
            return Ok(Ok(()));
        }
        let desk = &self.ground.people;
        let request = desk.request("session.mode", Some(to.as_str()), &self.context());
        let denied = |refusal: &fluffy_policy::Refusal| {
            let refusal = Refusal::of_decision("session.mode", refusal.decision());
            Ok(Err(Box::new(refusal)))
        };
        let review = match desk.ask(&request) {
            Ok(Answer::Granted(_)) => return Ok(Ok(())),
            Ok(Answer::Denied(refusal)) => return denied(&refusal),
            Ok(Answer::Review(review)) => review,
            Err(error) => return Err(DriveError::Route(error.into())),
        };
        match desk.approve(&request, &review, &desk.principal.name) {
            Ok(_) => {
                self.reviewed
                    .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Ok(Ok(()))
            }
            Err(ApproveError::Refused(AuthorizeError::Refused { refusal, .. })) => denied(&refusal),
            Err(error) => Err(DriveError::Route(error.into())),
        }
    }

    async fn pin(&mut self, text: String) -> Result<Reply, DriveError> {
        if text.len() > MAX_PIN {
            return Ok(refused(format!(
                "that is more than {MAX_PIN} bytes; pin the path of a file instead"
            )));
        }
        if self.session.pins.len() >= MAX_PINS {
            return Ok(refused(format!("{MAX_PINS} things are pinned already")));
        }
        self.record(Fact::Pinned { text }).await?;
        Ok(done("pinned: every turn sees it from now on".to_owned()))
    }

    async fn choose(&mut self, chosen: Chosen) -> Result<Reply, DriveError> {
        let Chosen {
            model,
            provider,
            address,
        } = chosen;
        let fact = Fact::Model {
            model: model.clone(),
        };
        self.record(fact).await?;
        self.ground.provider = provider;
        self.ground.address = address;
        Ok(done(format!("{model} is asked from now on")))
    }

    async fn compact(&mut self) -> Result<Reply, DriveError> {
        let (messages, before) = (&self.session.messages, &self.session.shortened);
        self.sizes.grow(messages, &tokens);
        // With no room at all, only the newest exchange is left whole.
        let Some(shortened) = shorten(messages, &self.sizes, before, 0, &tokens) else {
            return Ok(refused("there is nothing to shorten yet".to_owned()));
        };
        let text = format!("a summary stands for {} messages now", shortened.messages);
        self.record(Fact::Shortened(shortened)).await?;
        Ok(done(text))
    }
}

pub(super) fn done(text: String) -> Reply {
    Reply::Done { text }
}

pub(super) fn refused(text: String) -> Reply {
    Reply::Refused { text }
}
