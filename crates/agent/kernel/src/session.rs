//! A session: what the ledger says of it, folded.
//!
//! Every step of a session is a [`Fact`] in the ledger before anybody acts on
//! it, and a [`Session`] is nothing but its facts applied in order. So going on
//! after a crash is reading, and two readers never disagree. Next: `store`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fluffy_base::id::{LayerId, SessionId, SnapshotId};
use fluffy_base::{Digest, Timestamp};
use fluffy_contract::model::{Message, Part, Role, StopReason, ToolCall, Usage};
use fluffy_contract::tool::ToolOutcome;
use fluffy_policy::word::{Mode, State, Tier};
use fluffy_workflow::debt::Measured;
use fluffy_workflow::evidence::Green;
use fluffy_workflow::machine::{Event as WorkflowEvent, ReplayError, Standing, Workflow};
use serde::{Deserialize, Serialize};

use crate::commit::{Author, Entry};
use crate::event::{Outcome, SessionEnded, Spent};
use crate::history::{Shortened, forget};

/// How many states of the layer can be gone back to.
pub const MAX_KEPT: usize = 8;

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
    /// A later layer: the one before was merged.
    #[serde(rename = "session.layer")]
    Layer {
        /// Where writes land from now on.
        layer: LayerId,
    },
    /// Another model is asked from now on.
    #[serde(rename = "session.model")]
    Model {
        /// `provider/model`.
        model: String,
    },
    /// The layer was kept as it is, before calls that may change it.
    #[serde(rename = "session.kept")]
    Kept(Kept),
    /// The layer goes back to what was kept.
    #[serde(rename = "session.undone")]
    Undone {
        /// To which state.
        snapshot: SnapshotId,
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
    /// How strongly its tools are isolated; older ones are processes.
    #[serde(default = "process", skip_serializing_if = "is_process")]
    pub tier: Tier,
    /// Limits below the configured ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub budget: BTreeMap<String, u64>,
    /// The session it goes on from, if it is a fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<SessionId>,
    /// Where a recording of it is to be written, once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<PathBuf>,
    /// How many facts that one had then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_at: Option<usize>,
}

const fn process() -> Tier {
    Tier::Process
}

fn is_process(tier: &Tier) -> bool {
    *tier == Tier::Process
}

/// A state of the layer that can be gone back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Where it is kept.
    pub snapshot: SnapshotId,
    /// What the layer changed then; two equal ones are the same work.
    pub mark: Digest,
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
    /// What it does to the project's coverage, as far as it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<Measured>,
    /// Files that no test reaches after it, if that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreached: Option<Vec<String>>,
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

/// What stands for a commit's name where there is none.
pub(crate) const NO_COMMIT: &str = "none";

/// A session as of its last fact.
#[derive(Debug, Clone)]
pub struct Session {
    /// Which.
    pub id: SessionId,
    /// How it began.
    pub started: Started,
    /// What it works on now: the task, or what was said after it was done.
    pub task: String,
    /// Who is asked: `provider/model`.
    pub model: String,
    /// Where its writes land.
    pub layer: LayerId,
    /// Whether anything has happened in it since it began.
    pub begun: bool,
    /// States that can be gone back to, the newest last.
    pub kept: Vec<Kept>,
    /// A state that is being gone back to, until the workflow knows of it.
    pub undoing: Option<SnapshotId>,
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
    /// What the last commit may be called; nothing before one, and nothing
    /// since something else was asked for.
    pub landed: Option<Standing>,
    /// The last commit's name, if it has one.
    pub commit: Option<String>,
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
    /// What was said before the pending calls had ended.
    said: Vec<Message>,
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
            Self::Layer { .. } => "session.layer",
            Self::Model { .. } => "session.model",
            Self::Kept(_) => "session.kept",
            Self::Undone { .. } => "session.undone",
            Self::Ended(_) => "session.ended",
        }
    }
}

impl Session {
    /// A session that has just begun.
    #[must_use]
    pub fn begin(id: SessionId, started: Started) -> Self {
        Self {
            id,
            task: started.task.clone(),
            model: started.model.clone(),
            layer: started.layer,
            begun: false,
            kept: Vec::new(),
            undoing: None,
            said: Vec::new(),
            workflow: Workflow::default(),
            green: None,
            landed: None,
            commit: None,
            landing: None,
            messages: vec![from_person(&started.task)],
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

    /// A session that goes on from where another one stands.
    #[must_use]
    pub fn fork(origin: Self, id: SessionId, started: Started) -> Self {
        let mut session = Self {
            id,
            model: started.model.clone(),
            layer: started.layer,
            begun: false,
            kept: Vec::new(),
            undoing: None,
            landed: None,
            commit: None,
            landing: None,
            spent: Spent::default(),
            turns: 0,
            refused: 0,
            ended: None,
            started,
            ..origin
        };
        session.void("Not run: this is another session that goes on from here.");
        if !session.started.task.is_empty() {
            session.task = session.started.task.clone();
            let task = from_person(&session.started.task);
            session.messages.push(task);
        }
        session
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
        Self::begin(id, started).after(facts)
    }

    /// The same after these facts.
    ///
    /// # Errors
    /// They do not fit.
    pub fn after(mut self, facts: impl IntoIterator<Item = Fact>) -> Result<Self, FoldError> {
        for fact in facts {
            self.apply(&fact)?;
        }
        Ok(self)
    }

    /// What follows from one more fact.
    ///
    /// # Errors
    /// The workflow's record does not fit.
    pub fn apply(&mut self, fact: &Fact) -> Result<(), FoldError> {
        match fact {
            // A second beginning says nothing new.
            Fact::Started(_) => {}
            Fact::Said { text: said } => self.said(said),
            Fact::Answered(answered) => self.answered(answered),
            Fact::Finished(finished) => self.finished(finished),
            Fact::Workflow(event) => self.went_on(event)?,
            Fact::Landing(landing) => self.landing = Some(landing.clone()),
            Fact::Shortened(shortened) => {
                if let Some(gone) = self.messages.get_mut(..shortened.messages) {
                    forget(gone);
                }
                self.shortened = shortened.clone();
            }
            Fact::Pinned { text } => self.pins.push(text.clone()),
            Fact::Layer { layer } => {
                self.layer = *layer;
                self.kept.clear();
            }
            Fact::Model { model } => self.model.clone_from(model),
            Fact::Kept(kept) => {
                self.kept.push(*kept);
                let surplus = self.kept.len().saturating_sub(MAX_KEPT);
                self.kept.drain(..surplus);
            }
            Fact::Undone { snapshot } => self.undone(*snapshot),
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

    fn said(&mut self, text: &str) {
        self.ended = None;
        if self.workflow.state() == State::Idle {
            text.clone_into(&mut self.task);
            self.landed = None;
        }
        let message = from_person(text);
        // A result has to follow its call: what is said meanwhile comes after.
        match self.pending.is_empty() {
            true => self.messages.push(message),
            false => self.said.push(message),
        }
    }

    fn went_on(&mut self, event: &WorkflowEvent) -> Result<(), FoldError> {
        self.begun = true;
        match event {
            WorkflowEvent::ValidationPassed { green } => self.green = Some(green.clone()),
            WorkflowEvent::Committed { standing, commit } => {
                self.landed = Some(*standing);
                self.commit = Some(commit.clone()).filter(|name| name != NO_COMMIT);
                self.kept.clear();
            }
            WorkflowEvent::TaskStarted => self.landed = None,
            WorkflowEvent::Revised { .. } => {
                self.green = None;
                self.undoing = None;
            }
            _ => {}
        }
        let applied = self.workflow.apply(event);
        applied.map_err(|source| FoldError::Workflow {
            session: self.id,
            source,
        })
    }

    fn undone(&mut self, snapshot: SnapshotId) {
        if let Some(at) = self.kept.iter().position(|kept| kept.snapshot == snapshot) {
            self.kept.truncate(at);
        }
        self.undoing = Some(snapshot);
        self.void("Not run: the person took the last change back.");
        self.messages.push(from_person(
            "[the kernel] The person took back the last turn that changed files. The files are \
             as they were before it: read again what you rely on.",
        ));
    }

    /// Ends the pending calls without running them.
    fn void(&mut self, why: &str) {
        for call in self.pending() {
            self.finished(&CallFinished {
                call: call.id,
                tool: call.name,
                outcome: Outcome::Failed,
                content: why.to_owned(),
                original: Digest::of(why.as_bytes()),
                took_ms: 0,
            });
        }
    }

    fn answered(&mut self, answered: &Answered) {
        self.turns += 1;
        self.begun = true;
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
        self.messages.append(&mut self.said);
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

fn from_person(said: &str) -> Message {
    Message {
        role: Role::User,
        parts: vec![text(said)],
    }
}

fn text(text: &str) -> Part {
    Part::Text {
        text: text.to_owned(),
        opaque: None,
    }
}

#[cfg(test)]
mod tests {
    use fluffy_workflow::machine::RedAfter;
    use serde_json::json;

    use super::*;

    fn started(task: &str) -> Started {
        Started {
            task: task.to_owned(),
            mode: Mode::Strict,
            model: "a/b".to_owned(),
            layer: LayerId::from_bits(1),
            moment: Timestamp::from_micros(0),
            author: Author {
                name: "Ann".to_owned(),
                email: "ann@example.com".to_owned(),
            },
            tier: Tier::Process,
            budget: BTreeMap::new(),
            forked_from: None,
            forked_at: None,
            record: None,
        }
    }

    fn calling(ids: &[&str]) -> Fact {
        let call = |id: &&str| {
            Part::ToolCall(ToolCall {
                id: (*id).to_owned(),
                name: "fs.read".to_owned(),
                arguments: json!({}),
                opaque: None,
            })
        };
        Fact::Answered(Answered {
            parts: ids.iter().map(call).collect(),
            model: "a/b".to_owned(),
            usage: Usage::default(),
            cost_micros: None,
            stop: StopReason::ToolCalls,
        })
    }

    fn ends(call: &str) -> Fact {
        Fact::Finished(CallFinished {
            call: call.to_owned(),
            tool: "fs.read".to_owned(),
            outcome: Outcome::Done,
            content: "read".to_owned(),
            original: Digest::of(b"read"),
            took_ms: 1,
        })
    }

    fn said(text: &str) -> Fact {
        Fact::Said {
            text: text.to_owned(),
        }
    }

    fn kept(number: u128) -> Fact {
        Fact::Kept(Kept {
            snapshot: SnapshotId::from_bits(number),
            mark: Digest::of(&number.to_be_bytes()),
        })
    }

    fn fold(facts: Vec<Fact>) -> Session {
        let beginning = Fact::Started(started("do it"));
        let facts = std::iter::once(beginning).chain(facts);
        Session::fold(SessionId::from_bits(1), facts).unwrap()
    }

    fn roles(session: &Session) -> Vec<Role> {
        session.messages.iter().map(|one| one.role).collect()
    }

    #[test]
    fn what_is_said_between_a_call_and_its_result_comes_after_both() {
        let mut session = fold(vec![calling(&["1", "2"]), said("wait"), ends("2")]);
        assert_eq!(roles(&session), [Role::User, Role::Assistant]);
        session.apply(&ends("1")).unwrap();
        let all = [Role::User, Role::Assistant, Role::Tool, Role::User];
        assert_eq!(roles(&session), all);
    }

    #[test]
    fn a_task_after_a_task_is_what_was_said_then() {
        let mut session = fold(vec![said("more")]);
        assert_eq!(session.task, "more");
        session
            .apply(&Fact::Workflow(WorkflowEvent::TaskStarted))
            .unwrap();
        session.apply(&said("and that")).unwrap();
        assert_eq!(session.task, "more");
    }

    #[test]
    fn an_undo_ends_the_open_calls_and_tells_the_model() {
        let mut session = fold(vec![
            Fact::Workflow(WorkflowEvent::TaskStarted),
            kept(1),
            kept(2),
            kept(3),
            calling(&["1"]),
            Fact::Undone {
                snapshot: SnapshotId::from_bits(2),
            },
        ]);
        assert!(session.pending().is_empty());
        let all = [Role::User, Role::Assistant, Role::Tool, Role::User];
        assert_eq!(roles(&session), all);
        assert_eq!(session.kept.len(), 1);
        // Until the workflow knows of it, it is not at its end.
        assert_eq!(session.undoing, Some(SnapshotId::from_bits(2)));
        let revised = WorkflowEvent::Revised {
            red: RedAfter::Void,
        };
        session.apply(&Fact::Workflow(revised)).unwrap();
        assert_eq!(session.undoing, None);
    }

    #[test]
    fn only_so_many_states_are_kept_and_none_of_another_layer() {
        let mut session = fold((1..=MAX_KEPT as u128 + 3).map(kept).collect());
        assert_eq!(session.kept.len(), MAX_KEPT);
        assert_eq!(session.kept[0].snapshot, SnapshotId::from_bits(4));
        let layer = LayerId::from_bits(9);
        session.apply(&Fact::Layer { layer }).unwrap();
        assert_eq!((session.layer, session.kept.len()), (layer, 0));
    }

    #[test]
    fn a_fork_goes_on_with_the_conversation_and_pays_for_itself() {
        let mut origin = fold(vec![
            Fact::Workflow(WorkflowEvent::TaskStarted),
            Fact::Pinned {
                text: "be brief".to_owned(),
            },
            kept(1),
            calling(&["1"]),
        ]);
        origin.spent.tokens.input_tokens = 7;
        let begun = Started {
            layer: LayerId::from_bits(2),
            model: "c/d".to_owned(),
            ..started("differently")
        };
        let fork = Session::fork(origin.clone(), SessionId::from_bits(2), begun);
        assert_eq!(fork.workflow, origin.workflow);
        assert_eq!(fork.pins, origin.pins);
        assert_eq!(
            (fork.task.as_str(), fork.model.as_str()),
            ("differently", "c/d")
        );
        assert_eq!(fork.layer, LayerId::from_bits(2));
        assert_eq!((fork.spent, fork.turns), (Spent::default(), 0));
        assert!(fork.kept.is_empty() && fork.pending().is_empty() && !fork.begun);
        let all = [Role::User, Role::Assistant, Role::Tool, Role::User];
        assert_eq!(roles(&fork), all);
        let again = Session::fork(origin, SessionId::from_bits(3), started(""));
        assert_eq!((again.task.as_str(), again.messages.len()), ("do it", 3));
    }
}
