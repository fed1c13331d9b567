//! The guards of the workflow, and the errors that name them.
//!
//! Every refusal of [`crate::machine::Workflow::step`] is one of these; none
//! carries more than names, so that it can be shown to a model.

use fluffy_policy::word::{Mode, State};
use serde::{Deserialize, Serialize};

use crate::debt::Budget;
use crate::evidence::NotRed;
use crate::exemption::ExemptionBroken;

/// A condition without which the workflow does not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guard {
    /// The workflow is where this can happen.
    InPlace,
    /// The coverage budget leaves explore open.
    BudgetOpen,
    /// A refactoring has passing tests to keep.
    PassingTests,
    /// A new or changed test was seen to fail.
    RedTest,
    /// Nothing but tests was changed.
    OnlyTests,
    /// Something was changed.
    SomethingChanged,
    /// Frozen tests and configuration are as they were.
    Frozen,
    /// The evidence is for this very task.
    OwnEvidence,
    /// A person approved.
    Person,
    /// The task goes test-first.
    TestFirst,
    /// The task explores.
    Explores,
    /// The change is what its exemption was granted for.
    Exemption,
}

impl Guard {
    /// Every guard.
    pub const ALL: [Self; 12] = [
        Self::InPlace,
        Self::BudgetOpen,
        Self::PassingTests,
        Self::RedTest,
        Self::OnlyTests,
        Self::SomethingChanged,
        Self::Frozen,
        Self::OwnEvidence,
        Self::Person,
        Self::TestFirst,
        Self::Explores,
        Self::Exemption,
    ];

    /// What holds when it does.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::InPlace => "the workflow is in a state where this can happen",
            Self::BudgetOpen => "the coverage budget leaves explore open",
            Self::PassingTests => "there are passing tests that a refactoring has to keep",
            Self::RedTest => "a new or changed test was run and seen to fail",
            Self::OnlyTests => "nothing but tests was changed",
            Self::SomethingChanged => "something was changed",
            Self::Frozen => "tests and test configuration are as they were when they were red",
            Self::OwnEvidence => "the evidence is for this task's own tests",
            Self::Person => "a person approved",
            Self::TestFirst => "the task goes test-first",
            Self::Explores => "the task explores",
            Self::Exemption => "the change is what its exemption was granted for",
        }
    }
}

/// Why the workflow does not go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// It cannot happen in this state.
    #[error("`{input}` cannot happen while {state}")]
    OutOfPlace {
        /// What was wanted.
        input: &'static str,
        /// The state.
        state: State,
    },
    /// The coverage budget is spent.
    #[error("{budget}")]
    BudgetSpent {
        /// How it stands.
        budget: Budget,
    },
    /// A refactoring needs passing tests.
    #[error("a refactoring keeps tests passing, and no test passes")]
    NoPassingTests,
    /// The run is not red.
    #[error("no new or changed test was seen to fail")]
    NotRed(#[source] NotRed),
    /// Source was changed where only tests may be.
    #[error("only tests may change here, and source did: {}", paths.join(", "))]
    SourceChanged {
        /// Which files.
        paths: Vec<String>,
    },
    /// Nothing was changed.
    #[error("nothing was changed")]
    NothingChanged,
    /// Frozen files were changed.
    #[error("frozen tests or test configuration changed: {}", paths.join(", "))]
    FrozenChanged {
        /// Which files.
        paths: Vec<String>,
    },
    /// The evidence is for something else.
    #[error("the evidence is not for the tests of this task")]
    ForeignEvidence,
    /// Only a person may approve this.
    #[error("only a person may approve this: {}", paths.join(", "))]
    NeedsPerson {
        /// The sensitive files, if that is why.
        paths: Vec<String>,
    },
    /// The task does not go test-first.
    #[error("only a task that goes test-first does this; the mode is {mode}")]
    NotTestFirst {
        /// The mode.
        mode: Mode,
    },
    /// The task does not explore.
    #[error("only a task that explores does this; the mode is {mode}")]
    NotExploring {
        /// The mode.
        mode: Mode,
    },
    /// The change is not what was exempted.
    #[error("the change is not what its exemption was granted for")]
    NotExempt(#[source] ExemptionBroken),
}

impl StepError {
    /// The guard that failed.
    #[must_use]
    pub const fn guard(&self) -> Guard {
        match self {
            Self::OutOfPlace { .. } => Guard::InPlace,
            Self::BudgetSpent { .. } => Guard::BudgetOpen,
            Self::NoPassingTests => Guard::PassingTests,
            Self::NotRed(_) => Guard::RedTest,
            Self::SourceChanged { .. } => Guard::OnlyTests,
            Self::NothingChanged => Guard::SomethingChanged,
            Self::FrozenChanged { .. } => Guard::Frozen,
            Self::ForeignEvidence => Guard::OwnEvidence,
            Self::NeedsPerson { .. } => Guard::Person,
            Self::NotTestFirst { .. } => Guard::TestFirst,
            Self::NotExploring { .. } => Guard::Explores,
            Self::NotExempt(_) => Guard::Exemption,
        }
    }
}
