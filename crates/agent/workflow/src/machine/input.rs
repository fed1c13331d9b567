//! What can happen to a workflow, and what is recorded of it.
//!
//! An [`Input`] is a wish with the evidence for it; the kernel makes it. An
//! [`Event`] is a fact that the ledger keeps; only [`crate::machine`] makes
//! it, and folding events gives the state back.

use std::collections::BTreeMap;

use fluffy_base::Digest;
use fluffy_policy::word::{Category, Mode};
use serde::{Deserialize, Serialize};

use super::changes::Changes;
use crate::debt::Budget;
use crate::evidence::{Baseline, Green, NotGreen, NotRed, Red};
use crate::exemption::{Exemption, Stripped};
use crate::results::Outcome;

/// Something that somebody wants of the workflow, with its evidence.
#[derive(Debug, Clone)]
pub enum Input {
    /// The user sends a task.
    SendTask,
    /// Somebody wants another mode, and the policy answered.
    SwitchMode {
        /// The mode.
        to: Mode,
        /// What the policy says.
        answer: SwitchAnswer,
        /// Whether explore is open.
        budget: Budget,
    },
    /// An exemption was granted.
    GrantExemption {
        /// What it covers.
        exemption: Exemption,
    },
    /// The model says that its plan is complete.
    CompletePlan {
        /// What kind of work it is.
        kind: PlanKind,
        /// How every test stands before any of it.
        baseline: Baseline,
        /// Whether explore is open.
        budget: Budget,
    },
    /// The tests were written and run.
    StartCoding {
        /// What the run proves.
        judged: Result<Red, NotRed>,
        /// What the layer changes.
        changes: Changes,
    },
    /// The work is ready to be validated.
    Submit {
        /// What the layer changes.
        changes: Changes,
        /// [`super::changes::source_digest`] of the same files.
        source: Digest,
        /// For a change of types: both versions of each file without them.
        stripped: BTreeMap<String, Stripped>,
    },
    /// The kernel ran the tests.
    ReportTests {
        /// What the run proves.
        judged: Result<Green, Box<NotGreen>>,
    },
    /// The merge was approved.
    ApproveMerge {
        /// By whom.
        approval: Approval,
    },
    /// The merge was rejected.
    RejectMerge {
        /// Why.
        reason: String,
    },
    /// The test itself is wrong and has to be written again.
    ReopenTests {
        /// Who agrees.
        approval: Approval,
    },
    /// The user wants tests before the merge.
    RequestTests,
    /// The commit is in the repository.
    FinishCommit {
        /// Its id.
        commit: String,
    },
    /// What the layer holds was taken back, or is wanted differently.
    Revise {
        /// What the layer changes now.
        changes: Changes,
    },
    /// The user, or a limit, ends the task.
    Cancel,
}

impl Input {
    /// The name of what is wanted, for messages.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::SendTask => "send_task",
            Self::SwitchMode { .. } => "switch_mode",
            Self::GrantExemption { .. } => "grant_exemption",
            Self::CompletePlan { .. } => "complete_plan",
            Self::StartCoding { .. } => "start_coding",
            Self::Submit { .. } => "submit",
            Self::ReportTests { .. } => "report_tests",
            Self::ApproveMerge { .. } => "approve_merge",
            Self::RejectMerge { .. } => "reject_merge",
            Self::ReopenTests { .. } => "reopen_tests",
            Self::RequestTests => "request_tests",
            Self::FinishCommit { .. } => "finish_commit",
            Self::Revise { .. } => "revise",
            Self::Cancel => "cancel",
        }
    }
}

/// What the policy says about a switch of mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchAnswer {
    /// It may be.
    Allowed,
    /// It may not be, so the mode is strict.
    Refused,
}

/// What kind of work a plan is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanKind {
    /// Something behaves differently afterwards.
    Change,
    /// Nothing behaves differently afterwards.
    Refactor,
}

/// Who approved something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Approval {
    /// A rule of the policy.
    Automatic {
        /// The rule.
        rule: String,
    },
    /// A person.
    Person {
        /// Their name.
        name: String,
    },
}

impl Approval {
    /// Whether a person approved.
    #[must_use]
    pub const fn is_person(&self) -> bool {
        match self {
            Self::Automatic { .. } => false,
            Self::Person { .. } => true,
        }
    }
}

/// Which way a task goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flow {
    /// A red test, then source.
    TestFirst,
    /// Source only, with the same tests green before and after.
    Refactor,
    /// Source and tests as they come; ends unverified.
    Explore,
    /// Only what an exemption covers.
    Exempt,
}

/// What may be said of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Standing {
    /// The kernel saw the evidence.
    Verified,
    /// Nobody can know.
    Unverified,
    /// It was exempt from test-first.
    Exempt {
        /// As what.
        category: Category,
    },
}

/// Something that happened to the workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// A task was sent.
    TaskStarted,
    /// The mode is another one.
    ModeSwitched {
        /// Which.
        mode: Mode,
    },
    /// A switch was refused, so the mode is strict.
    SwitchRefused {
        /// What was wanted.
        asked: Mode,
    },
    /// An exemption was granted.
    ExemptionGranted {
        /// What it covers.
        exemption: Exemption,
    },
    /// A piece of the baseline; a large one takes several events.
    BaselineSeen {
        /// Tests and how they ended.
        outcomes: BTreeMap<String, Outcome>,
    },
    /// The plan is complete.
    PlanCompleted {
        /// Which way the task goes.
        flow: Flow,
    },
    /// New or changed tests fail.
    RedSeen {
        /// Which, and how.
        red: Red,
    },
    /// The work was handed in.
    ChangesSubmitted {
        /// How many files differ.
        files: usize,
        /// Changes that only a person may let pass.
        sensitive: Vec<String>,
        /// The digest of its source.
        source: Digest,
    },
    /// The tests are green.
    ValidationPassed {
        /// What that proves.
        green: Green,
    },
    /// The tests are not green.
    ValidationFailed {
        /// What stands in the way.
        reasons: Box<NotGreen>,
    },
    /// The merge may go ahead.
    MergeApproved {
        /// By whom.
        approval: Approval,
    },
    /// The merge may not go ahead.
    MergeRejected {
        /// Why.
        reason: String,
    },
    /// The tests are written again; what was red is void.
    TestsReopened {
        /// Who agreed.
        approval: Approval,
    },
    /// Tests are wanted before the merge.
    TestsRequested,
    /// The commit is done.
    Committed {
        /// Its id.
        commit: String,
        /// What may be said of it.
        standing: Standing,
    },
    /// The work goes on before its validation; evidence for it is void.
    Revised {
        /// What became of the red tests.
        red: RedAfter,
    },
    /// The task was ended.
    Cancelled,
}

/// What becomes of red tests when a layer goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RedAfter {
    /// The tests are those that were seen failing.
    Kept,
    /// They are not, or none was seen.
    Void,
}

impl Event {
    /// The name of the event, for messages.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::TaskStarted => "task_started",
            Self::ModeSwitched { .. } => "mode_switched",
            Self::SwitchRefused { .. } => "switch_refused",
            Self::ExemptionGranted { .. } => "exemption_granted",
            Self::BaselineSeen { .. } => "baseline_seen",
            Self::PlanCompleted { .. } => "plan_completed",
            Self::RedSeen { .. } => "red_seen",
            Self::ChangesSubmitted { .. } => "changes_submitted",
            Self::ValidationPassed { .. } => "validation_passed",
            Self::ValidationFailed { .. } => "validation_failed",
            Self::MergeApproved { .. } => "merge_approved",
            Self::MergeRejected { .. } => "merge_rejected",
            Self::TestsReopened { .. } => "tests_reopened",
            Self::TestsRequested => "tests_requested",
            Self::Committed { .. } => "committed",
            Self::Revised { .. } => "revised",
            Self::Cancelled => "cancelled",
        }
    }
}
