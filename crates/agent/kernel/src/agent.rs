//! One session at work: turns of the model, its calls, and how it ends.
//!
//! Everything that happens is recorded first and then acted on; after a crash
//! the same session goes on from its record. What the model says about its own
//! work decides nothing: `steps` asks the tests, `landing` the policy. Next:
//! `turn` asks the model.

mod calls;
mod debugging;
mod integration;
mod landing;
mod measuring;
mod orders;
mod steps;
mod testing;
mod turn;
mod typing;
mod undo;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use fluffy_base::Span;
use fluffy_base::id::TaskId;
use fluffy_contract::model::ModelProvider;
use fluffy_contract::tool::Need;
use fluffy_egress::Network;
use fluffy_gate::Desk;
use fluffy_layer::{HeldLayer, LayerKind, LayerStore};
use fluffy_ledger::{AppendError, Ledger};
use fluffy_models::price::Prices;
use fluffy_policy::Context;
use fluffy_policy::word::{Mode, State};
use fluffy_secret::Redactor;
use fluffy_tasks::{Kind, Priority};
use fluffy_tools::budget::{Budget, BudgetExhausted, Charge};
use fluffy_tools::registry::Registry;
use fluffy_tools::sanitise::{LIMIT, Sanitiser};
use fluffy_workflow::machine::{Input, Standing, SwitchAnswer};
use fluffy_workflow::project::detect::{Layout, Overrides};
use fluffy_workflow::project::instructions::{Instructions, Skill};
use tokio::sync::{mpsc, watch};

use crate::api::Status;
use crate::commit::Author;
use crate::course::Course;
use crate::debts::{Debts, Known};
use crate::event::{AgentEvent, Evidence, SessionEnded, SessionResult};
use crate::hidden::{FindHiddenError, Hidden, find_hidden};
use crate::history::Sizes;
use crate::host::Errand;
use crate::hub::Hub;
use crate::person::Person;
use crate::router::{RouteError, Router};
use crate::session::{Fact, FoldError, Session};
use crate::slots::{Slots, Work};
use crate::stop::Stop;
use crate::store::SessionStore;
use crate::touching::TestFiles;
use crate::workshop::Workshop;

/// How often the model is told to go on when it stops too early.
const NUDGES: u32 = 2;

/// Far more than a review or a commit ever takes.
const LONGEST: Span = Span {
    millis: 24 * 60 * 60 * 1_000,
};

/// What a session works with.
pub struct Agent {
    /// The session as of its last fact.
    pub session: Session,
    /// What it stands on.
    pub ground: Ground,
    /// Its layer; gone after a merge.
    pub held: HeldLayer,
    hidden: Hidden,
    layout: Arc<Layout>,
    budget: Budget,
    known: Known,
    tests: Arc<TestFiles>,
    /// The coverage that was measured last.
    measured: Option<measuring::Pair>,
    nudges: u32,
    sizes: Sizes,
    message: Option<String>,
    evidence: Evidence,
    reviewed: AtomicUsize,
    unanswered: AtomicBool,
    /// Why a commit could not be made, until the session ends for it.
    stuck: Option<String>,
    /// When it began to work.
    began: Option<Instant>,
    /// The task that the newest answer came from; its calls come after it.
    answered_by: Option<TaskId>,
    told_not_kept: bool,
    status: watch::Sender<Status>,
}

/// Everything around a session.
pub struct Ground {
    /// Where facts are kept.
    pub store: SessionStore,
    /// The same ledger, for its head.
    pub ledger: Ledger,
    /// Who listens.
    pub hub: Arc<Hub>,
    /// Who answers.
    pub person: Arc<Person>,
    /// In whose name policy is asked.
    pub desk: Desk,
    /// In whose name a person's own yes counts outside of all sandboxes.
    pub people: Desk,
    /// Whose turn it is, among all sessions.
    pub slots: Slots,
    /// Sandboxes over the project.
    pub workshop: Arc<Workshop>,
    /// Where layers are.
    pub layers: LayerStore,
    /// How layers are made here.
    pub kind: LayerKind,
    /// What the model can call.
    pub registry: Registry,
    /// Who answers turns.
    pub provider: Arc<dyn ModelProvider>,
    /// Where the provider is: `host:port`; none if it is no network at all.
    pub address: Option<String>,
    /// What integration tests reach hosts through.
    pub network: Arc<dyn Network>,
    /// Takes secrets out of results.
    pub redactor: Redactor,
    /// What models cost.
    pub prices: Prices,
    /// How many tokens of conversation the model takes.
    pub window: u64,
    /// What the project says about its tests.
    pub overrides: Overrides,
    /// What the project tells the agent.
    pub instructions: Vec<Instructions>,
    /// What can be read up.
    pub skills: Vec<Skill>,
    /// In whose name commits are made.
    pub author: Author,
    /// Set to end the turn.
    pub stop: Arc<Stop>,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent")
            .field("session", &self.session.id)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Ground {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ground").finish_non_exhaustive()
    }
}

/// Why a session cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// A fact could not be stored.
    #[error("the session could not be recorded")]
    NotRecorded(#[from] AppendError),
    /// A decision could not be stored.
    #[error(transparent)]
    Route(Box<dyn std::error::Error + Send + Sync>),
    /// The record does not fit together.
    #[error(transparent)]
    Fold(#[from] FoldError),
    /// Nothing can be run any more; the session can be resumed.
    #[error("the launcher of sandboxes is gone")]
    Lost,
    /// The layer cannot be read.
    #[error(transparent)]
    Layer(#[from] fluffy_layer::ReadLayerError),
    /// What policy keeps unread cannot be kept from commands.
    #[error(transparent)]
    Hidden(#[from] FindHiddenError),
    /// What the project owes is not known.
    #[error(transparent)]
    Debt(#[from] crate::debts::LoadDebtError),
    /// What the project says about its tests is unusable.
    #[error(transparent)]
    Tests(#[from] fluffy_workflow::project::detect::DetectError),
}

/// What comes next in a session.
enum Next {
    Go,
    End(SessionResult, String),
}

impl Agent {
    /// A session on its ground.
    ///
    /// # Errors
    /// The layer cannot be read, what policy keeps unread cannot be hidden, or
    /// the project's words about its tests are unusable.
    pub fn new(
        session: Session,
        ground: Ground,
        held: HeldLayer,
        budget: Budget,
    ) -> Result<Self, DriveError> {
        let layout = crate::course::survey(&held.view()?, &ground.overrides)?;
        let context = Context {
            mode: Some(session.workflow.mode()),
            ..ground.workshop.context()
        };
        let premises = ground.workshop.premises();
        // Not recorded one by one: the whole is, as a count.
        let hidden = find_hidden(&held, premises, &|resource| {
            let request = ground.desk.request("fs.read", Some(resource), &context);
            ground.desk.gate.would_allow(&request)
        })?;
        let debts = Debts::new(ground.ledger.clone());
        let known = debts.of(held.layer().project())?;
        let nothing = Status {
            session: session.id,
            mode: session.workflow.mode(),
            state: session.workflow.state(),
            model: session.model.clone(),
            tier: ground.workshop.premises().tier,
            isolation: ground.workshop.level(),
            spent: session.spent,
            budgets: std::collections::BTreeMap::new(),
        };
        let agent = Self {
            hidden,
            layout: Arc::new(layout),
            session,
            ground,
            held,
            budget,
            known,
            tests: Arc::default(),
            measured: None,
            nudges: 0,
            sizes: Sizes::default(),
            message: None,
            evidence: Evidence::default(),
            reviewed: AtomicUsize::new(0),
            unanswered: AtomicBool::new(false),
            stuck: None,
            began: None,
            answered_by: None,
            told_not_kept: false,
            status: watch::Sender::new(nothing),
        };
        agent.tell_status();
        Ok(agent)
    }

    /// Works until the task is done or something ends it; sees to errands
    /// between its steps.
    ///
    /// # Errors
    /// The session cannot go on; what was recorded stays.
    pub async fn work(
        &mut self,
        errands: &mut mpsc::Receiver<Errand>,
    ) -> Result<SessionEnded, DriveError> {
        let ended = self.work_on(errands).await;
        // However it ended: nothing of it runs on.
        self.end_running().await;
        ended
    }

    async fn work_on(
        &mut self,
        errands: &mut mpsc::Receiver<Errand>,
    ) -> Result<SessionEnded, DriveError> {
        self.began = Some(Instant::now());
        let _at_work = self.ground.slots.at_work();
        self.publish(self.beginning());
        self.note_hidden().await?;
        self.begin().await?;
        let (result, why) = loop {
            self.run_errands(errands).await?;
            match self.next(errands).await? {
                Next::Go => {}
                Next::End(result, why) => break (result, why),
            }
            if self.ground.stop.is_asked() {
                break (SessionResult::Cancelled, "you stopped it".to_owned());
            }
            let millis = self.worked();
            if millis > self.budget.limits().time.millis {
                let spent = self.budget.charge(Charge::Time(Span { millis }));
                let why = spent.err().map(|spent| out_of(&spent)).unwrap_or_default();
                break (SessionResult::Budget, why);
            }
        };
        let ended = self.ended(result, why);
        self.record(Fact::Ended(ended.clone())).await?;
        Ok(ended)
    }

    /// What has to be so before the model is asked.
    async fn begin(&mut self) -> Result<(), DriveError> {
        self.finish_undo().await?;
        if !self.session.begun {
            self.take_mode().await?;
            let waits = matches!(
                self.session.workflow.state(),
                State::Validating | State::Reviewing
            );
            if waits {
                self.revise().await?;
            }
        }
        match (self.session.workflow.state(), self.landed()) {
            (State::Idle, None) => drop(self.step(Input::SendTask).await?),
            (State::Idle, Some(_)) => self.tell_landed().await?,
            _ => {}
        }
        {
            let course = self.course();
            let prepared = self.router(&course).prepare().await;
            prepared.map_err(|error| DriveError::Route(error.into()))?;
        }
        // What a crash interrupted is ended before the model is asked again.
        if self.session.pending().is_empty()
            && matches!(
                self.session.workflow.state(),
                State::Validating | State::Reviewing | State::Committing
            )
        {
            self.validate().await?;
        }
        Ok(())
    }

    /// For how long it has worked, in milliseconds.
    fn worked(&self) -> u64 {
        let worked = self.began.map(|began| began.elapsed().as_millis());
        u64::try_from(worked.unwrap_or_default()).unwrap_or(u64::MAX)
    }

    /// Another mode than strict goes through policy, whoever asked for it; a
    /// refused one means strict.
    async fn take_mode(&mut self) -> Result<(), DriveError> {
        let to = self.session.started.mode;
        let forked = self.session.started.forked_from.is_some();
        if to == self.session.workflow.mode() && !(forked && to != Mode::Strict) {
            return Ok(());
        }
        let need = Need {
            action: "session.mode".to_owned(),
            resource: Some(to.as_str().to_owned()),
        };
        let asked = match to {
            // Strict is what is left when policy says no.
            Mode::Strict => None,
            Mode::Explore | Mode::Debug => {
                let course = self.course();
                let router = self.router(&course);
                Some(router.permit(&self.ground.desk, "session", &need).await)
            }
        };
        let answer = match asked.transpose() {
            Ok(_) => SwitchAnswer::Allowed,
            Err(RouteError::Refused(refusal)) => {
                let text = format!("{}; the mode is strict", refusal.for_people());
                self.publish(AgentEvent::Note { text });
                SwitchAnswer::Refused
            }
            Err(RouteError::NotRecorded(error)) => return Err(DriveError::Route(error)),
        };
        let budget = self.known.debt.budget();
        self.step(Input::SwitchMode { to, answer, budget })
            .await?
            .ok();
        if budget.is_locked() && answer == SwitchAnswer::Allowed {
            let text = format!("{budget}. The mode is strict");
            self.publish(AgentEvent::Note { text });
        }
        Ok(())
    }

    /// One step: the open calls, or a turn of the model.
    async fn next(&mut self, errands: &mut mpsc::Receiver<Errand>) -> Result<Next, DriveError> {
        if let Some(why) = self.stuck.take() {
            let why = format!("{why}; resume the session to try again");
            return Ok(Next::End(SessionResult::Failed, why));
        }
        if self.unanswered.load(Ordering::Relaxed) {
            let why = "policy wants a person to answer, and nobody is there".to_owned();
            return Ok(Next::End(SessionResult::Waiting, why));
        }
        let pending = self.session.pending();
        if !pending.is_empty() {
            self.calls(pending).await?;
            return Ok(self.finished().unwrap_or(Next::Go));
        }
        if let Some(end) = self.finished() {
            return Ok(end);
        }
        if let Err(spent) = self.budget.charge(Charge::Turn) {
            return Ok(Next::End(SessionResult::Budget, out_of(&spent)));
        }
        self.tell_status();
        self.make_room().await?;
        match self.turn().await? {
            Ok(()) if !self.session.pending().is_empty() => Ok(Next::Go),
            Ok(()) => {
                // What was said meanwhile is heard before the work is judged.
                let read = self.session.messages.len();
                self.run_errands(errands).await?;
                match self.session.messages.len() > read || self.ground.stop.is_asked() {
                    true => Ok(Next::Go),
                    false => self.stopped_talking().await,
                }
            }
            Err((result, why)) => Ok(Next::End(result, why)),
        }
    }

    /// Whether the task has come to its end.
    fn finished(&self) -> Option<Next> {
        if self.session.workflow.state() != State::Idle {
            return None;
        }
        let (result, why) = match self.landed() {
            Some(Standing::Verified) => (SessionResult::Verified, "the tests saw it"),
            Some(Standing::Exempt { .. }) => (SessionResult::Exempt, "an exemption covers it"),
            Some(Standing::Unverified) => (SessionResult::Unverified, "no test proves it"),
            None => (SessionResult::Cancelled, "the task was cancelled"),
        };
        Some(Next::End(result, why.to_owned()))
    }

    /// The model ended its turn without a call: it thinks it is done.
    async fn stopped_talking(&mut self) -> Result<Next, DriveError> {
        let state = self.session.workflow.state();
        let writes = matches!(
            state,
            State::CodeWriting | State::Exploring | State::RetroactiveTesting
        );
        if writes && !self.course().written(&self.held)?.is_empty() {
            let said = self.validate().await?;
            if let Some(end) = self.finished() {
                return Ok(end);
            }
            return self.nudge(&said).await;
        }
        let text = match state {
            State::Planning => "Nothing was done yet. Call plan.complete when you know what to do.",
            State::TestWriting => {
                "The kernel has not seen a new test fail. Write one and call test.run."
            }
            _ => "The task is not done. Go on, or say what is in the way.",
        };
        self.nudge(text).await
    }

    async fn nudge(&mut self, text: &str) -> Result<Next, DriveError> {
        self.nudges += 1;
        if self.nudges > NUDGES {
            let why = "the model stopped before the task was done".to_owned();
            return Ok(Next::End(SessionResult::Unfinished, why));
        }
        let text = format!("[the kernel] {text}");
        self.record(Fact::Said { text }).await?;
        Ok(Next::Go)
    }

    /// Something this session wants to do, for the scheduler.
    fn work_of(&self, kind: Kind, template: Option<&'static str>) -> Work {
        // What is green is not kept waiting by what is not yet, nor cut off.
        let is_green = matches!(kind, Kind::Review | Kind::Commit);
        let left = self.budget.limits().time.millis;
        let left = left.saturating_sub(self.worked()).max(1);
        Work {
            id: TaskId::generate(),
            name: format!("{kind} of {}", self.session.id),
            priority: match is_green {
                true => Priority::URGENT,
                false => Priority::NORMAL,
            },
            time: match is_green {
                true => LONGEST,
                false => Span { millis: left },
            },
            after: None,
            freeze: None,
            kind,
            template,
        }
    }

    fn course(&self) -> Course {
        Course {
            workflow: self.session.workflow.clone(),
            layout: Arc::clone(&self.layout),
        }
    }

    fn context(&self) -> Context {
        Context {
            mode: Some(self.session.workflow.mode()),
            state: Some(self.session.workflow.state()),
            ..self.ground.workshop.context()
        }
    }

    fn router<'a>(&'a self, course: &'a Course) -> Router<'a> {
        Router {
            desk: &self.ground.desk,
            people: &self.ground.people,
            context: self.context(),
            workshop: &self.ground.workshop,
            slots: &self.ground.slots,
            freezer: None,
            held: &self.held,
            hidden: &self.hidden,
            person: &self.ground.person,
            tests: &self.tests,
            unreached: &self.known.unreached,
            course,
            sanitiser: Sanitiser {
                redactor: &self.ground.redactor,
                count: &count_tokens,
                limit: LIMIT,
            },
            stop: self.ground.stop.flag(),
            unanswered: &self.unanswered,
            reviewed: &self.reviewed,
        }
    }

    /// Stores a fact and takes it in. What failed because the launcher was
    /// lost did not happen: whoever resumes the session does it again.
    async fn record(&mut self, fact: Fact) -> Result<(), DriveError> {
        if self.ground.workshop.is_lost() {
            return Err(DriveError::Lost);
        }
        self.ground.store.append(self.session.id, &fact).await?;
        self.session.apply(&fact)?;
        self.tell_status();
        Ok(())
    }

    fn tell_status(&self) {
        self.status.send_replace(self.status());
    }

    fn publish(&self, event: AgentEvent) {
        self.ground.hub.publish(event);
    }

    fn ended(&self, result: SessionResult, why: String) -> SessionEnded {
        let exit = match result {
            SessionResult::Verified | SessionResult::Exempt => 0,
            SessionResult::Unverified => 9,
            SessionResult::Waiting => 8,
            SessionResult::Budget => 10,
            SessionResult::Denied => 3,
            SessionResult::Diverged => 5,
            SessionResult::Unfinished | SessionResult::Cancelled | SessionResult::Failed => 1,
        };
        let head = self.ground.ledger.head().ok();
        let evidence = Evidence {
            reviewed: self.reviewed.load(Ordering::Relaxed),
            refused: self.session.refused,
            head: head.map(|head| (head.seq, head.hash.to_string())),
            ..self.evidence.clone()
        };
        SessionEnded {
            result,
            exit,
            why,
            evidence,
        }
    }
}

fn out_of(spent: &BudgetExhausted) -> String {
    format!("{spent}; {}", spent.how_to_go_on())
}

/// An error and its causes in a line.
#[must_use]
pub fn explain(error: &dyn std::error::Error) -> String {
    steps::chain(error)
}

/// Tokens of a result, as the sanitiser counts them.
fn count_tokens(text: &str) -> usize {
    fluffy_models::tokens::count("", text).value()
}
