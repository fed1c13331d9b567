//! A session: what the ledger says of it, folded.
//!
//! Every step of a session is a [`Fact`] in the ledger before anybody acts on
//! it, and a [`Session`] is nothing but its facts applied in order. So going on
//! after a crash is reading, and two readers never disagree. Next: `store`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fluffy_base::id::{LayerId, SessionId};
use fluffy_base::{Digest, Timestamp};
use fluffy_contract::model::{Message, Part, Role, StopReason, ToolCall, Usage};
use fluffy_contract::tool::ToolOutcome;
use fluffy_policy::word::Mode;
use fluffy_workflow::evidence::Green;
use fluffy_workflow::machine::{Event as WorkflowEvent, ReplayError, Standing, Workflow};
use serde::{Deserialize, Serialize};

use crate::commit::{Author, Entry};
use crate::event::{Outcome, SessionEnded, Spent};
use crate::history::Shortened;

/// One recorded step of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum Fact {
    /// It began.
    #[serde(rename = "session.started")]
    Started(Started),
    /// The person said something.
    #[serde(rename = "session.said")]
    Said {
        /// What.
        text: String,
    },
    /// A model answered.
    #[serde(rename = "model.answered")]
    Answered(Answered),
    /// A call of the last answer ended.
    #[serde(rename = "tool.finished")]
    Finished(CallFinished),
    /// The workflow went on.
    #[serde(rename = "workflow.changed")]
    Workflow(WorkflowEvent),
    /// What is about to be merged and then committed.
    #[serde(rename = "session.landing")]
    Landing(Landing),
    /// Older messages are sent as a summary from now on.
    #[serde(rename = "session.shortened")]
    Shortened(Shortened),
    /// Something is kept in front of the model.
    #[serde(rename = "session.pinned")]
    Pinned {
        /// What.
        text: String,
    },
    /// It ended, or stopped until somebody goes on.
    #[serde(rename = "session.ended")]
    Ended(SessionEnded),
}

/// How a session began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// The task.
    pub task: String,
    /// How strictly test-first holds.
    pub mode: Mode,
    /// `provider/model`.
    pub model: String,
    /// Where its writes land.
    pub layer: LayerId,
    /// When.
    pub moment: Timestamp,
    /// In whose name it commits.
    pub author: Author,
    /// The session it goes on from, if it is a fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<SessionId>,
    /// Where a recording of it is to be written, once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<PathBuf>,
}

/// One answer of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// What it said, thought and wants to call.
    pub parts: Vec<Part>,
    /// Who answered.
    pub model: String,
    /// What it used.
    pub usage: Usage,
    /// What that cost, in millionths of a dollar, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
    /// Why it stopped.
    pub stop: StopReason,
}

/// A merge and the commit after it, so that both can be ended after a crash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landing {
    /// What is committed.
    pub entries: Vec<Entry>,
    /// The whole message.
    pub message: String,
    /// Merged files, with lines added and removed.
    pub merged: BTreeMap<String, (u64, u64)>,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallFinished {
    /// Which call.
    pub call: String,
    /// Which tool.
    pub tool: String,
    /// How.
    pub outcome: Outcome,
    /// What the model gets to read.
    pub content: String,
    /// What the tool printed, before it was cut and sanitised.
    pub original: Digest,
    /// How long it took, everything included.
    pub took_ms: u64,
}

/// A session as of its last fact.
#[derive(Debug, Clone)]
pub struct Session {
    /// Which.
    pub id: SessionId,
    /// How it began.
    pub started: Started,
    /// The conversation.
    pub messages: Vec<Message>,
    /// What stands for its older part.
    pub shortened: Shortened,
    /// What is kept in front of the model.
    pub pins: Vec<String>,
    /// Where the workflow stands.
    pub workflow: Workflow,
    /// The newest evidence that validation passed.
    pub green: Option<Green>,
    /// What the last commit may be called; nothing before one.
    pub landed: Option<Standing>,
    /// What is or was last about to be merged and committed.
    pub landing: Option<Landing>,
    /// What it has used.
    pub spent: Spent,
    /// How many answers it has had.
    pub turns: u64,
    /// How many calls were refused.
    pub refused: usize,
    /// How it ended, until somebody goes on.
    pub ended: Option<SessionEnded>,
    pending: BTreeMap<String, ToolCall>,
    /// The order of the pending calls.
    order: Vec<String>,
    answers: Vec<Part>,
}

/// Why recorded facts are no session.
#[derive(Debug, thiserror::Error)]
pub enum FoldError {
    /// It does not begin with its beginning.
    #[error("the first fact of session `{session}` is not its beginning")]
    NoBeginning {
        /// Which session.
        session: SessionId,
    },
    /// The workflow's own record does not fit together.
    #[error("the workflow of session `{session}` does not fit together")]
    Workflow {
        /// Which session.
        session: SessionId,
        /// Why.
        #[source]
        source: ReplayError,
    },
}

impl Fact {
    /// The type of its event in the ledger.
    #[must_use]
    pub fn event_type(&self) -> &'static str {
        match self {
            Self::Started(_) => "session.started",
            Self::Said { .. } => "session.said",
            Self::Answered(_) => "model.answered",
            Self::Finished(_) => "tool.finished",
            Self::Workflow(_) => "workflow.changed",
            Self::Landing(_) => "session.landing",
            Self::Shortened(_) => "session.shortened",
            Self::Pinned { .. } => "session.pinned",
            Self::Ended(_) => "session.ended",
        }
    }
}

impl Session {
    /// A session that has just begun.
    #[must_use]
    pub fn begin(id: SessionId, started: Started) -> Self {
        let task = Message {
            role: Role::User,
            parts: vec![text(&started.task)],
        };
        Self {
            id,
            workflow: Workflow::default(),
            green: None,
            landed: None,
            landing: None,
            messages: vec![task],
            started,
            shortened: Shortened::default(),
            pins: Vec::new(),
            spent: Spent::default(),
            turns: 0,
            refused: 0,
            ended: None,
            pending: BTreeMap::new(),
            order: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// A session from all of its facts.
    ///
    /// # Errors
    /// They do not begin with a beginning, or do not fit together.
    pub fn fold(id: SessionId, facts: impl IntoIterator<Item = Fact>) -> Result<Self, FoldError> {
        let mut facts = facts.into_iter();
        let Some(Fact::Started(started)) = facts.next() else {
            return Err(FoldError::NoBeginning { session: id });
        };
        let mut session = Self::begin(id, started);
        for fact in facts {
            session.apply(&fact)?;
        }
        Ok(session)
    }

    /// What follows from one more fact.
    ///
    /// # Errors
    /// The workflow's record does not fit.
    pub fn apply(&mut self, fact: &Fact) -> Result<(), FoldError> {
        match fact {
            // A second beginning says nothing new.
            Fact::Started(_) => {}
            Fact::Said { text: said } => {
                self.ended = None;
                self.messages.push(Message {
                    role: Role::User,
                    parts: vec![text(said)],
                });
            }
            Fact::Answered(answered) => self.answered(answered),
            Fact::Finished(finished) => self.finished(finished),
            Fact::Workflow(event) => {
                match event {
                    WorkflowEvent::ValidationPassed { green } => self.green = Some(green.clone()),
                    WorkflowEvent::Committed { standing, .. } => self.landed = Some(*standing),
                    WorkflowEvent::TaskStarted => self.landed = None,
                    _ => {}
                }
                let applied = self.workflow.apply(event);
                applied.map_err(|source| FoldError::Workflow {
                    session: self.id,
                    source,
                })?;
            }
            Fact::Landing(landing) => self.landing = Some(landing.clone()),
            Fact::Shortened(shortened) => self.shortened = shortened.clone(),
            Fact::Pinned { text } => self.pins.push(text.clone()),
            Fact::Ended(ended) => self.ended = Some(ended.clone()),
        }
        Ok(())
    }

    /// The calls of the last answer that have not ended, in their order.
    #[must_use]
    pub fn pending(&self) -> Vec<ToolCall> {
        let calls = self.order.iter().filter_map(|id| self.pending.get(id));
        calls.cloned().collect()
    }

    fn answered(&mut self, answered: &Answered) {
        self.turns += 1;
        self.ended = None;
        add(&mut self.spent, answered);
        for part in &answered.parts {
            if let Part::ToolCall(call) = part {
                self.order.push(call.id.clone());
                self.pending.insert(call.id.clone(), call.clone());
            }
        }
        self.messages.push(Message {
            role: Role::Assistant,
            parts: answered.parts.clone(),
        });
    }

    /// Results go into one message, in the order of the calls, once all of
    /// them are there: that is what every provider accepts.
    fn finished(&mut self, finished: &CallFinished) {
        if self.pending.remove(&finished.call).is_none() {
            return;
        }
        if finished.outcome == Outcome::Refused {
            self.refused += 1;
        }
        self.answers.push(Part::ToolResult {
            call: finished.call.clone(),
            content: finished.content.clone(),
            outcome: match finished.outcome {
                Outcome::Done => ToolOutcome::Done,
                Outcome::Failed | Outcome::Refused => ToolOutcome::Failed,
            },
        });
        if !self.pending.is_empty() {
            return;
        }
        let mut parts = std::mem::take(&mut self.answers);
        let order = std::mem::take(&mut self.order);
        let place = |part: &Part| match part {
            Part::ToolResult { call, .. } => order.iter().position(|id| id == call),
            Part::Text { .. } | Part::Reasoning { .. } | Part::ToolCall(_) => None,
        };
        parts.sort_by_key(place);
        self.messages.push(Message {
            role: Role::Tool,
            parts,
        });
    }
}

fn add(spent: &mut Spent, answered: &Answered) {
    let (all, new) = (&mut spent.tokens, &answered.usage);
    all.input_tokens = all.input_tokens.saturating_add(new.input_tokens);
    all.cached_tokens = all.cached_tokens.saturating_add(new.cached_tokens);
    all.cache_write_tokens = all
        .cache_write_tokens
        .saturating_add(new.cache_write_tokens);
    all.output_tokens = all.output_tokens.saturating_add(new.output_tokens);
    all.reasoning_tokens = all.reasoning_tokens.saturating_add(new.reasoning_tokens);
    // One answer of unknown price makes the sum unknown, never smaller.
    let first = all.output_tokens == new.output_tokens && all.input_tokens == new.input_tokens;
    spent.cost_micros = match (spent.cost_micros, answered.cost_micros) {
        (None, Some(cost)) if first => Some(cost),
        (Some(sum), Some(cost)) => Some(sum.saturating_add(cost)),
        _ => None,
    };
}

fn text(text: &str) -> Part {
    Part::Text {
        text: text.to_owned(),
        opaque: None,
    }
}
