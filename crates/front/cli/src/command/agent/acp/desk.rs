//! One session of an editor: prompts in, updates and questions out.
//!
//! Has its own connection to the kernel of its project. A prompt is answered
//! when the kernel says that its work is over, never before.

use fluffy_base::id::{ApprovalId, SessionId};
use fluffy_kernel::api::{Reply, SessionOrder, Start};
use fluffy_kernel::event::{AgentEvent, PersonAnswer};
use fluffy_policy::word::Mode;
use fluffy_report::Report;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::super::connect::{Kernel, Lost};
use super::told;
use super::translate::{Translator, permission, stop_reason};
use super::wire::{self, INTERNAL, INVALID_REQUEST, Problem};
use crate::failure::Failure;

/// What the editor wants of a session.
#[derive(Debug)]
pub(super) enum ToDesk {
    /// Work on this.
    Prompt {
        /// What the answer has to name.
        id: Value,
        /// What is to be done.
        text: String,
    },
    /// Stop the turn.
    Cancel,
    /// Another mode.
    Mode {
        /// What the answer has to name.
        id: Value,
        /// Which.
        mode: Mode,
    },
    /// The person answered.
    Answer {
        /// To what.
        approval: ApprovalId,
        /// What.
        answer: PersonAnswer,
    },
}

/// What a session has for the editor.
#[derive(Debug)]
pub(super) enum FromDesk {
    /// A message as it is.
    Send(Value),
    /// A question to the person.
    Ask {
        /// Which session asks.
        desk: String,
        /// What.
        approval: ApprovalId,
        /// As the protocol wants it.
        params: Value,
    },
}

/// One session of an editor.
#[derive(Debug)]
pub(super) struct Desk {
    name: String,
    kernel: Kernel,
    wanted: Start,
    translator: Translator,
    session: Option<SessionId>,
    /// The prompt that is being worked on.
    prompt: Option<Value>,
    /// Switches of mode that have not been answered.
    switches: JoinSet<Switch>,
}

/// A mode that was wanted, for which request, and what came of it.
type Switch = (Value, Mode, Result<Reply, Report>);

/// The editor went away.
struct Gone;

impl Desk {
    /// A session in which nothing has been said.
    pub(super) fn new(kernel: Kernel, wanted: Start) -> Self {
        Self {
            name: String::new(),
            translator: Translator::new(wanted.mode),
            kernel,
            wanted,
            session: None,
            prompt: None,
            switches: JoinSet::new(),
        }
    }

    /// The same desk, as the editor calls it.
    pub(super) fn named(mut self, name: String) -> Self {
        self.name = name;
        self
    }

    /// Works until the editor goes away.
    pub(super) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<ToDesk>,
        out: mpsc::Sender<FromDesk>,
    ) {
        loop {
            let step = tokio::select! {
                event = self.kernel.next() => match event {
                    Ok(event) => self.hear(&event, &out).await,
                    Err(Lost) => self.find_again(&out).await,
                },
                Some(Ok((id, mode, reply))) = self.switches.join_next() => {
                    let outcome = self.switched(mode, reply);
                    send(&out, wire::answer(&id, outcome)).await
                },
                message = inbox.recv() => match message {
                    Some(message) => self.told(message, &out).await,
                    None => Err(Gone),
                },
            };
            if step.is_err() {
                break;
            }
        }
        if let (Some(session), Some(_)) = (self.session, &self.prompt) {
            // Nobody watches any more; the session can be resumed.
            let _ = self.kernel.stop(session).await;
        }
    }

    async fn hear(&mut self, event: &AgentEvent, out: &mpsc::Sender<FromDesk>) -> Result<(), Gone> {
        for update in self.translator.event(event) {
            send(out, wire::update(&self.name, update)).await?;
        }
        match event {
            AgentEvent::ApprovalWanted {
                approval,
                question,
                reasons,
                shown,
            } => {
                let about = (reasons.as_slice(), shown.as_deref());
                let params = permission(&self.name, &approval.to_string(), question, about);
                let ask = FromDesk::Ask {
                    desk: self.name.clone(),
                    approval: *approval,
                    params,
                };
                out.send(ask).await.map_err(|_| Gone)
            }
            AgentEvent::SessionEnded(ended) => {
                self.end(stop_reason(&ended.result, &ended.why), out).await
            }
            _ => Ok(()),
        }
    }

    async fn told(&mut self, message: ToDesk, out: &mpsc::Sender<FromDesk>) -> Result<(), Gone> {
        match message {
            ToDesk::Prompt { id, text } => self.work(id, &text, out).await,
            ToDesk::Mode { id, mode } => self.switch(id, mode, out).await,
            ToDesk::Cancel => {
                if let Some(session) = self.session {
                    // Whether it works is heard as the end of the turn.
                    drop(self.kernel.stop(session));
                }
                Ok(())
            }
            ToDesk::Answer { approval, answer } => {
                let Some(session) = self.session else {
                    return Ok(());
                };
                match self.kernel.answer(session, approval, answer).await {
                    Ok(()) => Ok(()),
                    Err(failure) => self.end(Err(problem(&failure)), out).await,
                }
            }
        }
    }

    async fn work(
        &mut self,
        id: Value,
        text: &str,
        out: &mpsc::Sender<FromDesk>,
    ) -> Result<(), Gone> {
        if self.prompt.is_some() {
            let busy = Problem::new(
                INVALID_REQUEST,
                "a prompt is being worked on; cancel it first",
            );
            return send(out, wire::answer(&id, Err(busy))).await;
        }
        let begun = match self.session {
            Some(session) => self.kernel.say(session, text).await,
            None => {
                self.wanted.task = text.to_owned();
                let started = self.kernel.start(&self.wanted).await;
                started.map(|session| self.session = Some(session))
            }
        };
        self.prompt = Some(id);
        match begun {
            Ok(()) => Ok(()),
            Err(failure) => self.end(Err(problem(&failure)), out).await,
        }
    }

    /// Not waited for: a question may have to be answered first.
    async fn switch(
        &mut self,
        id: Value,
        mode: Mode,
        out: &mpsc::Sender<FromDesk>,
    ) -> Result<(), Gone> {
        let Some(session) = self.session else {
            self.wanted.mode = mode;
            self.translator.set_mode(mode);
            return send(out, wire::answer(&id, Ok(json!({})))).await;
        };
        let order = SessionOrder::Mode { mode };
        let reply = self.kernel.order_later(session, order);
        self.switches.spawn(async move { (id, mode, reply.await) });
        Ok(())
    }

    fn switched(&mut self, mode: Mode, reply: Result<Reply, Report>) -> Result<Value, Problem> {
        match reply {
            Ok(Reply::Refused { text }) => Err(Problem::new(INVALID_REQUEST, text)),
            Ok(Reply::Done { .. } | Reply::Status(_) | Reply::Text { .. }) => {
                self.translator.set_mode(mode);
                Ok(json!({}))
            }
            Err(report) => Err(problem(&report.into())),
        }
    }

    async fn find_again(&mut self, out: &mpsc::Sender<FromDesk>) -> Result<(), Gone> {
        match self.kernel.reconnect().await {
            Ok(()) => Ok(()),
            Err(failure) => {
                self.end(Err(problem(&failure)), out).await?;
                Err(Gone)
            }
        }
    }

    /// Answers the prompt, if there is one.
    async fn end(
        &mut self,
        outcome: Result<Value, Problem>,
        out: &mpsc::Sender<FromDesk>,
    ) -> Result<(), Gone> {
        match self.prompt.take() {
            Some(id) => send(out, wire::answer(&id, outcome)).await,
            None => Ok(()),
        }
    }
}

async fn send(out: &mpsc::Sender<FromDesk>, message: Value) -> Result<(), Gone> {
    out.send(FromDesk::Send(message)).await.map_err(|_| Gone)
}

fn problem(failure: &Failure) -> Problem {
    Problem::new(INTERNAL, told(failure))
}
