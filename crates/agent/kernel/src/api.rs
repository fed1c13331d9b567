//! What a client can ask the kernel, over IPC.
//!
//! A client starts or resumes a session and then hears its events, each with a
//! number; after a broken connection it attaches again from the last number it
//! saw. Several clients may watch one session; any of them may answer.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fluffy_base::id::{ApprovalId, SessionId};
use fluffy_contract::isolation::Level;
use fluffy_policy::word::{Mode, State, Tier};
use serde::{Deserialize, Serialize};

use crate::commit::Author;
use crate::event::{AgentEvent, PersonAnswer, Spent};

/// The version of these calls.
pub const VERSION: u32 = 1;

/// The method of the kernel's own events: a [`Heard`] each.
pub const EVENT: &str = "session.event";

/// `session.start`: [`Start`] in, [`Begun`] out.
pub const START: &str = "session.start";
/// `session.resume`: [`Resume`] in, [`Begun`] out.
pub const RESUME: &str = "session.resume";
/// `session.attach`: [`Attach`] in, nothing out; events follow.
pub const ATTACH: &str = "session.attach";
/// `session.say`: [`Say`] in, nothing out.
pub const SAY: &str = "session.say";
/// `session.answer`: [`AnswerApproval`] in, nothing out.
pub const ANSWER: &str = "session.answer";
/// `session.stop`: [`Which`] in; ends the turn, the session can be resumed.
pub const STOP: &str = "session.stop";
/// `session.command`: [`Order`] in, [`Reply`] out: what slash commands do.
pub const COMMAND: &str = "session.command";
/// `kernel.ping`: nothing in, [`Alive`] out.
pub const PING: &str = "kernel.ping";
/// `kernel.stop`: nothing in; ends the kernel when its sessions are at rest.
pub const QUIT: &str = "kernel.stop";

/// A task for a new session.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// What is to be done.
    pub task: String,
    /// How strictly test-first holds.
    pub mode: Mode,
    /// Which models, the first that answers wins: `provider/model`.
    pub models: Vec<String>,
    /// Who is at the other end.
    pub person: Presence,
    /// In whose name commits are made.
    pub author: Author,
    /// The directory the person is in, from the project's root.
    #[serde(default)]
    pub directory: String,
    /// Lower limits than the configured ones.
    #[serde(default)]
    pub budget: BTreeMap<String, u64>,
    /// How strongly tools are to be isolated; the template's own if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// Where a recording is to be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<PathBuf>,
    /// The session it goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<SessionId>,
    /// What the person has set for providers.
    #[serde(default)]
    pub providers: ProviderEnvironment,
}

/// What a person's environment says about providers, addresses and keys by the
/// names of their variables and keys from the keyring, and about us.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderEnvironment {
    /// Base addresses.
    #[serde(default)]
    pub addresses: BTreeMap<String, String>,
    /// Keys; they go on to the model worker and nowhere else.
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
    /// Entries of the keyring that could not be read, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub problems: BTreeMap<String, String>,
    /// Variables that stand for keys of our own configuration.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

impl ProviderEnvironment {
    /// Where the key of this entry of the keyring is among the keys; no
    /// variable can be called so.
    #[must_use]
    pub fn of_keyring(name: &str) -> String {
        format!("keyring:{name}")
    }
}

impl std::fmt::Debug for ProviderEnvironment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProviderEnvironment")
            .field("addresses", &self.addresses)
            .field("keys", &self.keys.keys())
            .field("problems", &self.problems)
            .field("settings", &self.settings)
            .finish()
    }
}

/// Whether somebody can answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// A person who is asked.
    Present,
    /// Nobody: what needs an answer ends the run.
    Absent,
}

/// A session to go on with.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// Which.
    pub session: SessionId,
    /// Who is at the other end.
    pub person: Presence,
    /// What the person has set for providers.
    #[serde(default)]
    pub providers: ProviderEnvironment,
}

/// Which session it is now.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Begun {
    /// Which.
    pub session: SessionId,
}

/// Hear of a session from here on.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// Which.
    pub session: SessionId,
    /// The last number that was heard; 0 for all there are.
    pub after: u64,
}

/// One event of a session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Heard {
    /// Which session.
    pub session: SessionId,
    /// Its number, without holes as long as the kernel lives.
    pub number: u64,
    /// What happened.
    pub event: AgentEvent,
}

/// Which session is meant.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Which {
    /// Which.
    pub session: SessionId,
}

/// Something the person says in a session.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Say {
    /// Which session.
    pub session: SessionId,
    /// What.
    pub text: String,
}

/// A person's answer to a question.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerApproval {
    /// Which session.
    pub session: SessionId,
    /// Which question.
    pub approval: ApprovalId,
    /// The answer.
    pub answer: PersonAnswer,
}

/// What a slash command asks for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Which session.
    pub session: SessionId,
    /// What.
    pub order: SessionOrder,
}

/// The orders of a person to a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum SessionOrder {
    /// Another mode; goes through policy.
    Mode {
        /// Which.
        mode: Mode,
    },
    /// Where it stands.
    Status,
    /// What it would change, as a unified diff.
    Diff,
    /// Back to before the last turn that changed something.
    Undo,
    /// Keep this in front of the model.
    Pin {
        /// What.
        text: String,
    },
    /// Ask another model from now on.
    Model {
        /// `provider/model`.
        model: String,
    },
    /// Send older messages as a summary from now on.
    Compact,
}

/// What an order came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// It was done.
    Done {
        /// In a line.
        text: String,
    },
    /// It was refused.
    Refused {
        /// By what, and what would help.
        text: String,
    },
    /// Where the session stands.
    Status(Status),
    /// A text to show.
    Text {
        /// The text.
        text: String,
    },
}

/// Where a session stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Which session.
    pub session: SessionId,
    /// How strictly test-first holds.
    pub mode: Mode,
    /// Where the workflow stands.
    pub state: State,
    /// Who answers.
    pub model: String,
    /// How strongly tools are isolated.
    pub tier: Tier,
    /// What that really gives on this machine.
    pub isolation: Level,
    /// What it has used.
    pub spent: Spent,
    /// Budgets by name: used and allowed.
    pub budgets: BTreeMap<String, (u64, u64)>,
}

/// The kernel answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Alive {
    /// Its version.
    pub version: String,
    /// Sessions that are being worked on.
    pub busy: usize,
}
