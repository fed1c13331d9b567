//! A person and a session: events one way, words and answers the other.
//!
//! One loop for every surface that a person watches: a single task, the
//! interactive prompt, a resumed session, a headless run. The kernel decides
//! everything; this only carries it. Next: `typed` for what is typed.

mod typed;

use std::collections::VecDeque;
use std::time::Duration;

use fluffy_base::id::{ApprovalId, SessionId};
use fluffy_kernel::api::{Resume, Start};
use fluffy_kernel::event::{AgentEvent, PersonAnswer, SessionEnded, SessionResult, SessionStarted};
use fluffy_policy::word::Tier;
use fluffy_report::{ExitCode, PrintError, Report, Tone};

use super::connect::{Kernel, Lost};
use super::senses::{Heed, Keyboard, Sense, Senses};
use super::show::words::short_id;
use super::view::View;
use crate::command::Outcome;
use crate::failure::Failure;
use tokio::task::JoinSet;
use typed::Ordered;

/// How long a kernel may take to stop a turn before we leave anyway.
const STOPS: Duration = Duration::from_secs(5);

/// A session that is followed.
#[derive(Debug)]
pub(crate) struct Conversation<'a> {
    kernel: Kernel,
    view: View<'a>,
    manner: Manner,
    /// What a new session is begun with; its task is what is typed first.
    wanted: Option<Start>,
    session: Option<SessionId>,
    work: Work,
    questions: VecDeque<ApprovalId>,
    /// What was ordered and has not been answered.
    orders: JoinSet<Ordered>,
    /// Whether something was said that no turn has read.
    unread: bool,
    interrupts: u32,
    exit: ExitCode,
    ended: Option<SessionEnded>,
}

/// How a conversation goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Manner {
    /// When it is over.
    pub(crate) ends: Ends,
    /// Who answers questions.
    pub(crate) answers: Answers,
}

/// When a conversation is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// When the session's work is.
    WithTask,
    /// When the person leaves.
    WithPerson,
}

/// Who answers the questions of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    /// The person at the terminal.
    Person,
    /// The flag that the person gave.
    AlwaysYes,
    /// Nobody; the kernel knows and ends the run instead.
    Nobody,
}

/// Whether the kernel is at work for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Resting,
    Going,
}

/// Whether the loop goes on.
type Step = Result<Option<ExitCode>, Failure>;

impl<'a> Conversation<'a> {
    /// A conversation in which nothing has been said.
    pub(crate) fn new(kernel: Kernel, view: View<'a>, manner: Manner) -> Self {
        Self {
            kernel,
            view,
            manner,
            wanted: None,
            session: None,
            work: Work::Resting,
            questions: VecDeque::new(),
            orders: JoinSet::new(),
            unread: false,
            interrupts: 0,
            exit: ExitCode::Success,
            ended: None,
        }
    }

    /// The same, for a new session that is begun like this.
    pub(crate) fn wanting(mut self, wanted: Start) -> Self {
        self.wanted = Some(wanted);
        self
    }

    /// Begins a session with this task.
    pub(crate) async fn begin(&mut self, task: &str) -> Result<(), Failure> {
        let Some(wanted) = &mut self.wanted else {
            return Err(no_wish().into());
        };
        wanted.task = task.to_owned();
        self.session = Some(self.kernel.start(wanted).await?);
        self.work = Work::Going;
        Ok(())
    }

    /// Goes on with a session.
    pub(crate) async fn resume(&mut self, resume: Resume) -> Result<(), Failure> {
        self.session = Some(resume.session);
        self.kernel.resume(resume).await?;
        self.work = Work::Going;
        Ok(())
    }

    /// Which session it is, once there is one.
    pub(crate) fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// How the session's work ended last.
    pub(crate) fn ended(&self) -> Option<&SessionEnded> {
        self.ended.as_ref()
    }

    /// Follows the session until it is over.
    pub(crate) async fn run(&mut self, mut senses: Senses) -> Outcome {
        match self.follow(&mut senses).await {
            // Nobody reads on. That is no success: nothing was verified.
            Err(Failure::Print(PrintError::Closed)) => {
                self.stop_and_wait().await;
                Ok(ExitCode::Failure)
            }
            Err(failure) => {
                // The failure is what there is to tell.
                let _ = self.view.close();
                Err(failure)
            }
            Ok(code) => {
                self.view.close()?;
                Ok(code)
            }
        }
    }

    async fn follow(&mut self, senses: &mut Senses) -> Outcome {
        self.prompt()?;
        loop {
            let keyboard = senses.keyboard();
            // Lines are taken one after the other; only a question may have to
            // be answered before an order can be.
            let heed = match self.orders.is_empty() || !self.questions.is_empty() {
                true => Heed::Everything,
                false => Heed::Interrupts,
            };
            let step = tokio::select! {
                event = self.kernel.next() => match event {
                    Ok(event) => self.hear(&event, keyboard).await,
                    Err(Lost) => self.find_again().await,
                },
                Some(Ok(ordered)) = self.orders.join_next() => self.ordered(ordered),
                sense = senses.next(heed) => match sense {
                    Sense::Line(line) => self.typed(&line).await,
                    Sense::End => self.silent().await,
                    Sense::Interrupt => self.interrupted().await,
                },
            };
            if let Some(code) = step? {
                return Ok(code);
            }
        }
    }

    async fn hear(&mut self, event: &AgentEvent, keyboard: Keyboard) -> Step {
        self.view.event(event)?;
        match event {
            AgentEvent::SessionStarted(started) => return self.started(started).await,
            AgentEvent::TurnStarted { .. } => {
                self.interrupts = 0;
                self.unread = false;
            }
            AgentEvent::ApprovalWanted { approval, .. } => {
                return self.asked(*approval, keyboard).await;
            }
            AgentEvent::ApprovalAnswered { approval, .. } => {
                self.questions.retain(|question| question != approval);
            }
            AgentEvent::SessionEnded(ended) => {
                self.work = Work::Resting;
                self.questions.clear();
                self.interrupts = 0;
                self.exit = exit_of(ended.exit);
                self.ended = Some(ended.clone());
                // The kernel goes on with what it has heard, unless it was stopped.
                let goes_on = std::mem::take(&mut self.unread)
                    && !matches!(
                        ended.result,
                        SessionResult::Cancelled | SessionResult::Failed
                    );
                if self.manner.ends == Ends::WithTask && !goes_on {
                    return Ok(Some(self.exit));
                }
                self.prompt()?;
            }
            _ => {}
        }
        Ok(None)
    }

    /// No silent downgrade: a weaker tier than was asked for ends it at once.
    async fn started(&mut self, started: &SessionStarted) -> Step {
        self.work = Work::Going;
        let wanted = self.wanted.as_ref().and_then(|wanted| wanted.tier);
        let Some(tier) = wanted.filter(|tier| started.tier < *tier) else {
            return Ok(None);
        };
        self.stop_and_wait().await;
        Err(weaker(started.tier, tier).into())
    }

    async fn asked(&mut self, approval: ApprovalId, keyboard: Keyboard) -> Step {
        self.questions.push_back(approval);
        match (self.manner.answers, keyboard) {
            (Answers::AlwaysYes, _) => {
                self.view
                    .say(Tone::Caution, "answered yes, because of --yes-auto")?;
                self.answer(PersonAnswer::Approve).await?;
            }
            (Answers::Person, Keyboard::Read) => self.prompt()?,
            (Answers::Person, Keyboard::Left) => {
                return self.leave(ExitCode::AwaitingApproval).await;
            }
            (Answers::Nobody, _) => {}
        }
        Ok(None)
    }

    /// Ctrl-C once stops the turn, twice the session.
    async fn interrupted(&mut self) -> Step {
        self.interrupts += 1;
        if self.interrupts > 1 {
            return self.leave(ExitCode::Failure).await;
        }
        match (self.work, self.session) {
            (Work::Going, Some(session)) => {
                // Whether it works is heard as the end of the turn.
                drop(self.kernel.stop(session));
                let words = "stopping the turn; Ctrl-C again leaves the session";
                self.view.say(Tone::Caution, words)?;
            }
            _ => {
                self.view.say(Tone::Plain, "Ctrl-C again or /quit leaves")?;
                self.prompt()?;
            }
        }
        Ok(None)
    }

    /// The person will type no more.
    async fn silent(&mut self) -> Step {
        if !self.questions.is_empty() {
            return self.leave(ExitCode::AwaitingApproval).await;
        }
        match self.manner.ends {
            Ends::WithPerson => self.leave(self.exit).await,
            Ends::WithTask => Ok(None),
        }
    }

    async fn find_again(&mut self) -> Step {
        self.view.lost()?;
        self.kernel.reconnect().await?;
        Ok(None)
    }

    /// Ends what is going on and says how to go on later.
    async fn leave(&mut self, code: ExitCode) -> Step {
        self.stop_and_wait().await;
        if let Some(session) = self.session {
            let id = session.to_string();
            let words = format!("go on with: fluffy session resume {}", short_id(&id));
            self.view.say(Tone::Plain, &words)?;
        }
        Ok(Some(code))
    }

    async fn stop_and_wait(&mut self) {
        if let (Work::Going, Some(session)) = (self.work, self.session) {
            // A kernel that does not answer is left all the same.
            let _ = tokio::time::timeout(STOPS, self.kernel.stop(session)).await;
        }
    }

    /// Asks for what is needed now: an answer, or something to do.
    fn prompt(&mut self) -> Result<(), Failure> {
        if self.manner.answers == Answers::Person && !self.questions.is_empty() {
            self.view.ask("approve? [y/n] ")?;
        } else if self.manner.ends == Ends::WithPerson
            && self.work == Work::Resting
            && self.orders.is_empty()
        {
            self.view.ask("> ")?;
        }
        Ok(())
    }
}

/// The public code of a number that came over the wire.
fn exit_of(number: u8) -> ExitCode {
    let known = ExitCode::ALL
        .into_iter()
        .find(|code| code.number() == number);
    known.unwrap_or(ExitCode::Internal)
}

/// Only a conversation that goes on with a session has no wish for a new one.
fn no_wish() -> Report {
    Report::new(ExitCode::Internal, "no session can be begun here")
        .fix("please report this, with the command that led to it")
}

fn weaker(got: Tier, wanted: Tier) -> Report {
    let what = format!("the kernel isolates by `{got}` where `{wanted}` was asked for");
    Report::new(ExitCode::Conflict, what)
        .code("weaker_tier")
        .why("a session never runs in weaker isolation than was asked for")
        .fix("`fluffy doctor` says what this machine can do; leave out --tier, or stop the kernel")
}

#[cfg(test)]
mod tests;
