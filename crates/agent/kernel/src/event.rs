//! What clients see of a session: one stream, the same on every surface.
//!
//! `fluffy run --json` prints it a line each, the terminal draws it, editors
//! get it over their protocol. Adding a kind or an optional field is no new
//! version; renaming or removing one is. Never holds a secret: texts of tools
//! are sanitised before they get here.

use std::collections::BTreeMap;

use fluffy_base::id::{ApprovalId, LayerId, SessionId};
use fluffy_contract::isolation::Level;
use fluffy_contract::model::Usage;
use fluffy_policy::word::{Mode, State, Tier};
use fluffy_workflow::debt::{Budget as DebtBudget, Measured};
use serde::{Deserialize, Serialize};

/// The version of the stream.
pub const VERSION: u32 = 1;

/// One thing that happened in a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum AgentEvent {
    /// A session began or goes on; always the first.
    #[serde(rename = "session.started")]
    SessionStarted(SessionStarted),
    /// A turn of the model began.
    #[serde(rename = "turn.started")]
    TurnStarted {
        /// Its number in the session.
        turn: u64,
    },
    /// A piece of the model's text.
    #[serde(rename = "text.delta")]
    TextDelta {
        /// The piece.
        text: String,
    },
    /// A piece of the model's visible reasoning.
    #[serde(rename = "reasoning.delta")]
    ReasoningDelta {
        /// The piece.
        text: String,
    },
    /// What was shown of this turn is void: it is asked again.
    #[serde(rename = "turn.restarted")]
    TurnRestarted {
        /// Why.
        reason: String,
    },
    /// A tool runs.
    #[serde(rename = "tool.started")]
    ToolStarted {
        /// The call.
        call: String,
        /// The tool.
        tool: String,
        /// What it acts on, in a few words.
        subject: String,
    },
    /// A tool ended, or was refused.
    #[serde(rename = "tool.finished")]
    ToolFinished {
        /// The call.
        call: String,
        /// The tool.
        tool: String,
        /// How.
        outcome: Outcome,
        /// How long it took, everything included.
        took_ms: u64,
        /// In a line, for people.
        summary: String,
    },
    /// The workflow went on.
    #[serde(rename = "workflow.changed")]
    WorkflowChanged {
        /// From where.
        from: State,
        /// To where.
        to: State,
        /// Why, in a line.
        why: String,
    },
    /// The kernel ran the tests.
    #[serde(rename = "tests.ran")]
    TestsRan {
        /// How many passed.
        passed: usize,
        /// The names of those that failed.
        failed: Vec<String>,
        /// How many were skipped.
        skipped: usize,
        /// How long it took.
        took_ms: u64,
    },
    /// Work of the session will be paused for something more urgent.
    #[serde(rename = "task.warned")]
    TaskWarned {
        /// What it is called.
        name: String,
        /// After how many milliseconds.
        in_ms: u64,
    },
    /// It will not be paused after all.
    #[serde(rename = "task.spared")]
    TaskSpared {
        /// What it is called.
        name: String,
    },
    /// It stands still until its turn comes again.
    #[serde(rename = "task.paused")]
    TaskPaused {
        /// What it is called.
        name: String,
    },
    /// It goes on where it was.
    #[serde(rename = "task.resumed")]
    TaskResumed {
        /// What it is called.
        name: String,
    },
    /// A person has to answer.
    #[serde(rename = "approval.wanted")]
    ApprovalWanted {
        /// What to answer to.
        approval: ApprovalId,
        /// What is asked, in a line.
        question: String,
        /// Which rules ask, and why.
        reasons: Vec<String>,
        /// What it is about, where that can be shown: a diff.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shown: Option<String>,
    },
    /// A person answered.
    #[serde(rename = "approval.answered")]
    ApprovalAnswered {
        /// To what.
        approval: ApprovalId,
        /// What.
        answer: PersonAnswer,
    },
    /// What the session has used so far.
    #[serde(rename = "usage")]
    Usage(Spent),
    /// A recording is played, and a tool answered differently from it.
    #[serde(rename = "replay.diverged")]
    ReplayDiverged {
        /// Where, in a line.
        place: String,
        /// A unified diff from the recording to what happened.
        diff: String,
    },
    /// Something worth knowing.
    #[serde(rename = "note")]
    Note {
        /// What.
        text: String,
    },
    /// The session's work is over, or waits.
    #[serde(rename = "session.ended")]
    SessionEnded(SessionEnded),
}

/// How a session begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStarted {
    /// The version of this stream.
    pub version: u32,
    /// Which session.
    pub session: SessionId,
    /// The task.
    pub task: String,
    /// How strictly test-first holds.
    pub mode: Mode,
    /// `provider/model`.
    pub model: String,
    /// How strongly tools are isolated.
    pub tier: Tier,
    /// What that really gives on this machine.
    pub isolation: Level,
    /// Where its writes land.
    pub layer: LayerId,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It did what it was asked to do.
    Done,
    /// It ran and did not succeed.
    Failed,
    /// It was not run.
    Refused,
}

/// What a person says to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PersonAnswer {
    /// Yes.
    Approve,
    /// No.
    Reject,
}

/// Tokens and money of a session so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// The tokens.
    #[serde(flatten)]
    pub tokens: Usage,
    /// Millionths of a dollar; none where the price is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
}

/// How a session ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionEnded {
    /// In a word.
    pub result: SessionResult,
    /// The exit code of a headless run.
    pub exit: u8,
    /// Why, in a sentence.
    pub why: String,
    /// What the kernel saw.
    pub evidence: Evidence,
}

/// The word for how a session ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionResult {
    /// Done, and the kernel saw the tests fail and then pass.
    Verified,
    /// Done without that.
    Unverified,
    /// Done under an exemption that a person or a rule granted.
    Exempt,
    /// The model stopped before it was done.
    Unfinished,
    /// A person has to answer first.
    Waiting,
    /// A budget ran out.
    Budget,
    /// Policy or a person said no.
    Denied,
    /// The person stopped it.
    Cancelled,
    /// A recording was played, and a tool answered differently from it.
    Diverged,
    /// Something broke.
    Failed,
}

/// The facts behind the word, each seen by the kernel and in the ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Tests that failed before the change and pass now, unchanged.
    pub fail_to_pass: Vec<String>,
    /// How many passed before and still do.
    pub pass_to_pass: usize,
    /// Merged files, with lines added and removed.
    pub merged: BTreeMap<String, (u64, u64)>,
    /// The commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Integration tests that did not run the last time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_run: Vec<String>,
    /// The project's coverage before and after, in hundredths of a per cent;
    /// only where the project says how it is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<Measured>,
    /// How the debt budget stands after the commit, unless explore is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debt: Option<DebtBudget>,
    /// How many decisions a person answered.
    pub reviewed: usize,
    /// How many calls were refused.
    pub refused: usize,
    /// The newest event of the ledger, and its hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<(u64, String)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_stream_names_its_kind_first() {
        let event = AgentEvent::ToolFinished {
            call: "c1".to_owned(),
            tool: "fs.read".to_owned(),
            outcome: Outcome::Done,
            took_ms: 3,
            summary: "12 lines".to_owned(),
        };
        let line = serde_json::to_string(&event).unwrap();
        assert!(
            line.starts_with(r#"{"type":"tool.finished","call":"c1""#),
            "{line}"
        );
        assert_eq!(serde_json::from_str::<AgentEvent>(&line).unwrap(), event);
    }
}
