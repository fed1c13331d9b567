//! A session's place in the kernel: who it is reached by, working or at rest.
//!
//! One task owns a session as long as the kernel lives. While the session
//! works, the task hands orders to its agent, which looks at them between two
//! steps, and answers itself what only looks. At rest there is no agent, and
//! nothing holds the layer: one is made for an order, or to go on. Next:
//! `agent::orders`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fluffy_base::id::SessionId;
use fluffy_contract::BoxFuture;
use fluffy_contract::model::ModelProvider;
use fluffy_ipc::{ErrorCode, Failure};
use fluffy_layer::Glance;
use fluffy_tools::budget::Resource;
use tokio::sync::{mpsc, oneshot, watch};

use crate::agent::{Agent, DriveError, explain};
use crate::api::{Presence, ProviderEnvironment, Reply, Resume, SessionOrder, Start, Status};
use crate::event::{AgentEvent, Evidence, SessionEnded, SessionResult};
use crate::hub::Hub;
use crate::person::Person;
use crate::server::Needed;
use crate::stop::Stop;

/// How many letters and errands may wait; more are refused.
const WAITING: usize = 32;

/// The most bytes of one message of a person.
const MAX_SAID: usize = 64 * 1024;

/// Makes sessions ready to work.
pub trait Make: Send + Sync + 'static {
    /// A new session for a task.
    fn start(&self, start: Start, ways: Ways) -> BoxFuture<'_, Result<Agent, Failure>>;

    /// A recorded session, to go on.
    fn resume(&self, resume: Resume, ways: Ways) -> BoxFuture<'_, Result<Agent, Failure>>;

    /// A recorded session, for an order: no model can be asked in it.
    fn open(&self, session: SessionId, ways: Ways) -> BoxFuture<'_, Result<Agent, Failure>>;

    /// Another model for a session.
    ///
    /// # Errors
    /// There is none of this name, or no way to it.
    fn model(
        &self,
        session: SessionId,
        model: &str,
        environment: &ProviderEnvironment,
    ) -> Result<Chosen, Failure>;
}

/// A model that can be asked.
pub struct Chosen {
    /// `provider/model`.
    pub model: String,
    /// Who answers.
    pub provider: Arc<dyn ModelProvider>,
    /// Where that is: `host:port`; none if it is no network at all.
    pub address: Option<String>,
}

impl std::fmt::Debug for Chosen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chosen")
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

/// The ways between a session and people, as long as the kernel lives.
#[derive(Debug, Clone)]
pub struct Ways {
    /// Who listens.
    pub hub: Arc<Hub>,
    /// Who answers.
    pub person: Arc<Person>,
    /// How the turn is ended.
    pub stop: Arc<Stop>,
}

impl Ways {
    /// New ways, with this person at the other end.
    #[must_use]
    pub fn new(presence: Presence) -> Self {
        let hub = Arc::new(Hub::default());
        Self {
            person: Arc::new(Person::new(presence, Arc::clone(&hub))),
            hub,
            stop: Arc::default(),
        }
    }
}

/// Something that changes a session, done by its agent between two steps.
#[derive(Debug)]
pub enum Errand {
    /// What the person says.
    Say(String),
    /// An order, and where its outcome is waited for.
    Obey(Wish, Answer),
}

/// The orders that change a session.
#[derive(Debug)]
pub enum Wish {
    /// Another mode.
    Mode(fluffy_policy::word::Mode),
    /// The last change taken back.
    Undo,
    /// This in front of the model.
    Pin(String),
    /// Another model.
    Model(Chosen),
    /// A summary for older messages.
    Compact,
}

/// Where an outcome is waited for.
pub type Answer = oneshot::Sender<Result<Reply, Failure>>;

/// What comes to a session from outside.
#[derive(Debug)]
pub(crate) enum Letter {
    Order(SessionOrder, Answer),
    Say(String, oneshot::Sender<Result<(), Failure>>),
    /// Answered with the number after which its events are to be told.
    Resume(Resume, oneshot::Sender<Result<u64, Failure>>),
}

/// How a session is reached.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) ways: Ways,
    pub(crate) busy: Arc<AtomicBool>,
    inbox: mpsc::Sender<Letter>,
}

impl Known {
    pub(crate) async fn order(&self, order: SessionOrder) -> Result<Reply, Failure> {
        self.ask(|answer| Letter::Order(order, answer)).await
    }

    pub(crate) async fn say(&self, text: String) -> Result<(), Failure> {
        if text.len() > MAX_SAID {
            let message = format!("that is more than {MAX_SAID} bytes; put it into a file");
            return Err(Failure::new(ErrorCode::InvalidParams, message));
        }
        self.ask(|answer| Letter::Say(text, answer)).await
    }

    pub(crate) async fn resume(&self, resume: Resume) -> Result<u64, Failure> {
        self.ask(|answer| Letter::Resume(resume, answer)).await
    }

    async fn ask<T>(
        &self,
        letter: impl FnOnce(oneshot::Sender<Result<T, Failure>>) -> Letter,
    ) -> Result<T, Failure> {
        let (answer, answered) = oneshot::channel();
        let sent = self.inbox.try_send(letter(answer));
        sent.map_err(|_| Failure::new(ErrorCode::Conflict, "too much waits for the session"))?;
        answered.await.unwrap_or_else(|_| {
            let message = "the session could not go on; resume it";
            Err(Failure::new(ErrorCode::Internal, message))
        })
    }
}

/// A session's task.
pub(crate) struct Host {
    make: Arc<dyn Make>,
    needed: Needed,
    ways: Ways,
    busy: Arc<AtomicBool>,
    /// What it is gone on with.
    resume: Resume,
    inbox: mpsc::Receiver<Letter>,
    /// What the agent had not looked at when it ended.
    left: VecDeque<Errand>,
    /// Whether it was stopped or broke: then it rests, whatever was said.
    stopped: bool,
    /// Where it stood when it was last looked at.
    status: Option<Status>,
}

impl Host {
    /// A session at rest, and how it is reached.
    pub(crate) fn new(
        make: Arc<dyn Make>,
        needed: Needed,
        ways: Ways,
        resume: Resume,
    ) -> (Self, Known) {
        let (sender, inbox) = mpsc::channel(WAITING);
        let known = Known {
            ways: ways.clone(),
            busy: Arc::default(),
            inbox: sender,
        };
        let host = Self {
            make,
            needed,
            busy: Arc::clone(&known.busy),
            ways,
            resume,
            inbox,
            left: VecDeque::new(),
            stopped: false,
            status: None,
        };
        (host, known)
    }

    /// Lets this agent work, if there is one, and serves the session for ever.
    pub(crate) async fn live(mut self, mut agent: Option<Agent>) {
        loop {
            if let Some(ready) = agent.take() {
                self.work(ready).await;
            }
            if let Some(errand) = self.left.pop_front() {
                agent = self.run_errand(errand).await;
                continue;
            }
            let Some(letter) = self.inbox.recv().await else {
                return;
            };
            let reason = self.needed.reason();
            agent = self.at_rest(letter).await;
            drop(reason);
        }
    }

    /// Works until the session rests; letters are served meanwhile.
    async fn work(&mut self, mut agent: Agent) {
        let _reason = self.needed.reason();
        self.busy.store(true, Ordering::Relaxed);
        let (errands, mut taken) = mpsc::channel(WAITING);
        while let Some(errand) = self.left.pop_front() {
            if let Err(full) = errands.try_send(errand) {
                refuse(full.into_inner());
            }
        }
        let looks = Looks {
            began: Instant::now(),
            status: agent.watch(),
            glance: agent.held.glance().ok().map(Arc::new),
        };
        let ended = {
            let mut work = std::pin::pin!(agent.work(&mut taken));
            loop {
                tokio::select! {
                    ended = &mut work => break ended,
                    Some(letter) = self.inbox.recv() => self.meanwhile(letter, &looks, &errands),
                }
            }
        };
        while let Ok(errand) = taken.try_recv() {
            self.left.push_back(errand);
        }
        self.status = Some(looks.status());
        // Whoever hears of the end finds the layer free.
        drop(looks);
        drop(agent);
        self.busy.store(false, Ordering::Relaxed);
        let ended = match ended {
            Ok(ended) => ended,
            // The client hears of it by losing this kernel, and goes on with
            // the next.
            Err(DriveError::Lost) => return,
            // The ledger may be what failed; the client still hears why.
            Err(error) => failed(explain(&error)),
        };
        self.stopped = matches!(
            ended.result,
            SessionResult::Cancelled | SessionResult::Failed
        );
        self.ways.hub.publish(AgentEvent::SessionEnded(ended));
    }

    /// A letter while the agent works: what only looks is answered at once.
    fn meanwhile(&mut self, letter: Letter, looks: &Looks, errands: &mpsc::Sender<Errand>) {
        let errand = match letter {
            Letter::Order(SessionOrder::Status, answer) => {
                let _ = answer.send(Ok(Reply::Status(looks.status())));
                return;
            }
            Letter::Order(SessionOrder::Diff, answer) => {
                looks.diff(answer);
                return;
            }
            Letter::Order(order, answer) => match self.wish(order) {
                Ok(wish) => Errand::Obey(wish, answer),
                Err(failure) => {
                    let _ = answer.send(Err(failure));
                    return;
                }
            },
            Letter::Say(text, answer) => {
                let room = match errands.capacity() {
                    0 => Err(Failure::new(
                        ErrorCode::Conflict,
                        "too much was said already",
                    )),
                    _ => Ok(()),
                };
                let is_full = room.is_err();
                let _ = answer.send(room);
                if is_full {
                    return;
                }
                Errand::Say(text)
            }
            Letter::Resume(resume, answer) => {
                // It works already; whoever asks watches, and may answer.
                self.ways.person.becomes(resume.person);
                self.resume = resume;
                let _ = answer.send(Ok(self.ways.hub.before_beginning()));
                return;
            }
        };
        let text = match &errand {
            Errand::Say(_) => "heard; the model reads it at its next turn",
            Errand::Obey(..) => "this is done as soon as the step has ended",
        };
        match errands.try_send(errand) {
            Ok(()) => {
                let text = text.to_owned();
                self.ways.hub.publish(AgentEvent::Note { text });
            }
            Err(full) => refuse(full.into_inner()),
        }
    }

    /// A letter at rest; an agent if the session is to work on.
    async fn at_rest(&mut self, letter: Letter) -> Option<Agent> {
        match letter {
            Letter::Order(SessionOrder::Status, answer) if self.status.is_some() => {
                let status = self.status.clone().map(Reply::Status);
                let _ = answer.send(status.ok_or_else(gone));
                None
            }
            Letter::Order(order @ (SessionOrder::Status | SessionOrder::Diff), answer) => {
                let _ = answer.send(self.look(&order).await);
                None
            }
            Letter::Order(order, answer) => {
                match self.wish(order) {
                    Ok(wish) => self.obey(wish, answer).await,
                    Err(failure) => drop(answer.send(Err(failure))),
                }
                None
            }
            Letter::Say(text, answer) => self.go_on_with(text, Some(answer)).await,
            Letter::Resume(resume, answer) => {
                self.ways.person.becomes(resume.person);
                self.resume = resume;
                let after = self.ways.hub.newest();
                let made = self.go_on().await;
                let (agent, reply) = match made {
                    Ok(agent) => (Some(agent), Ok(after)),
                    Err(failure) => (None, Err(failure)),
                };
                let _ = answer.send(reply);
                agent
            }
        }
    }

    /// What came too late for the agent that has ended.
    async fn run_errand(&mut self, errand: Errand) -> Option<Agent> {
        match errand {
            Errand::Say(text) if self.stopped => {
                // Kept for when somebody goes on.
                if let Ok(mut agent) = self.open().await {
                    let _ = agent.say(text).await;
                }
                None
            }
            Errand::Say(text) => self.go_on_with(text, None).await,
            Errand::Obey(wish, answer) => {
                self.obey(wish, answer).await;
                None
            }
        }
    }

    async fn go_on(&self) -> Result<Agent, Failure> {
        self.ways.stop.clear();
        let resume = self.resume.clone();
        self.make.resume(resume, self.ways.clone()).await
    }

    /// Goes on with what the person said.
    async fn go_on_with(
        &mut self,
        text: String,
        answer: Option<oneshot::Sender<Result<(), Failure>>>,
    ) -> Option<Agent> {
        let said = async {
            let mut agent = self.go_on().await?;
            agent.say(text).await.map_err(|error| broken(&error))?;
            Ok(agent)
        };
        let (agent, reply) = match said.await {
            Ok(agent) => (Some(agent), Ok(())),
            Err(failure) => (None, Err(failure)),
        };
        match (answer, reply) {
            (Some(answer), reply) => drop(answer.send(reply)),
            // Whoever said it was told that it is heard, and waits.
            (None, Err(failure)) => {
                let ended = failed(failure.message);
                self.ways.hub.publish(AgentEvent::SessionEnded(ended));
            }
            (None, Ok(())) => {}
        }
        agent
    }

    /// Status and diff of a session without an agent.
    async fn look(&mut self, order: &SessionOrder) -> Result<Reply, Failure> {
        let agent = self.open().await?;
        self.status = Some(agent.status());
        Ok(match order {
            SessionOrder::Diff => diff(agent.held.difference()),
            _ => Reply::Status(agent.status()),
        })
    }

    async fn obey(&mut self, wish: Wish, answer: Answer) {
        let reply = async {
            let mut agent = self.open().await?;
            let obeyed = agent.obey(wish).await;
            self.status = Some(agent.status());
            obeyed.map_err(|error| broken(&error))
        };
        let _ = answer.send(reply.await);
    }

    async fn open(&self) -> Result<Agent, Failure> {
        self.make.open(self.resume.session, self.ways.clone()).await
    }

    fn wish(&self, order: SessionOrder) -> Result<Wish, Failure> {
        Ok(match order {
            SessionOrder::Mode { mode } => Wish::Mode(mode),
            SessionOrder::Undo => Wish::Undo,
            SessionOrder::Pin { text } => Wish::Pin(text),
            SessionOrder::Compact => Wish::Compact,
            SessionOrder::Model { model } => {
                let Resume {
                    session, providers, ..
                } = &self.resume;
                Wish::Model(self.make.model(*session, &model, providers)?)
            }
            // Answered where they are asked; they change nothing.
            SessionOrder::Status | SessionOrder::Diff => return Err(gone()),
        })
    }
}

/// What can be seen of a session while its agent works.
struct Looks {
    began: Instant,
    status: watch::Receiver<Status>,
    glance: Option<Arc<Glance>>,
}

impl Looks {
    /// As of its last step, but for the time, which goes on.
    fn status(&self) -> Status {
        let mut status = self.status.borrow().clone();
        if let Some((used, _)) = status.budgets.get_mut(Resource::Time.word()) {
            *used = self.began.elapsed().as_secs();
        }
        status
    }

    /// Reads files, so not in anybody's way.
    fn diff(&self, answer: Answer) {
        let Some(glance) = self.glance.clone() else {
            let text = "the layer cannot be looked at now".to_owned();
            let _ = answer.send(Ok(Reply::Refused { text }));
            return;
        };
        tokio::task::spawn_blocking(move || {
            let reply = diff(glance.difference());
            // Before the answer: whoever has it may want the layer.
            drop(glance);
            let _ = answer.send(Ok(reply));
        });
    }
}

fn diff(read: Result<fluffy_layer::Difference, fluffy_layer::ReadLayerError>) -> Reply {
    match read {
        Ok(difference) => Reply::Text {
            text: difference.to_string(),
        },
        Err(error) => Reply::Refused {
            text: explain(&error),
        },
    }
}

fn failed(why: String) -> SessionEnded {
    SessionEnded {
        result: SessionResult::Failed,
        exit: 7,
        why,
        evidence: Evidence::default(),
    }
}

fn refuse(errand: Errand) {
    if let Errand::Obey(_, answer) = errand {
        let text = "too much waits for the session already".to_owned();
        let _ = answer.send(Ok(Reply::Refused { text }));
    }
}

fn gone() -> Failure {
    Failure::new(ErrorCode::Internal, "nothing is known of the session")
}

fn broken(error: &DriveError) -> Failure {
    Failure::new(ErrorCode::Internal, explain(error))
}
