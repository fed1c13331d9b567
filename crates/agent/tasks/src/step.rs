//! What goes into a scheduler and what comes out of it.
//!
//! Data only. A driver writes the events of a step to the ledger in one
//! transaction, and only then carries out its effects. Next: `scheduler`.

use fluffy_base::Timestamp;
use fluffy_base::id::TaskId;

use crate::event::{EndWhy, Event};
use crate::limits::Memory;
use crate::submit::SubmitError;
use crate::table::ApplyError;
use crate::task::Task;

/// What a driver tells the scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Take these tasks, all or none.
    Submit {
        /// Which; they may depend on each other.
        tasks: Vec<Task>,
    },
    /// End a task and everything that depends on it.
    Cancel {
        /// Which.
        task: TaskId,
    },
    /// Something happened to a task that was started.
    Report {
        /// Which.
        task: TaskId,
        /// The number that came with its start.
        attempt: u32,
        /// What.
        report: Report,
    },
    /// How full memory is now.
    Memory(Memory),
    /// The moment of [`crate::Scheduler::next_wake`] has come.
    Wake,
}

/// What happened to a task that was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// It did what it was for.
    Succeeded,
    /// It did not.
    Failed {
        /// Why, for people.
        reason: String,
    },
    /// It is frozen, as ordered.
    Paused,
    /// It cannot be frozen; it runs on.
    Unpausable,
    /// It is gone, as ordered.
    Ended,
    /// The driver ended it by itself to get memory back.
    Reclaimed,
}

/// What a driver has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Start it from the beginning.
    Start {
        /// What; the driver decides nothing about it.
        task: Box<Task>,
        /// Comes back with every report.
        attempt: u32,
    },
    /// Tell it that it will be paused.
    Warn {
        /// Which.
        task: TaskId,
        /// When.
        until: Timestamp,
    },
    /// Tell it that it will not be paused after all.
    Spare {
        /// Which.
        task: TaskId,
    },
    /// Freeze it, and report [`Report::Paused`] or [`Report::Unpausable`].
    Pause {
        /// Which.
        task: TaskId,
    },
    /// Let it run on.
    Resume {
        /// Which.
        task: TaskId,
    },
    /// End it, and report [`Report::Ended`] or how it ended by itself.
    End {
        /// Which.
        task: TaskId,
        /// Why.
        why: EndWhy,
    },
}

/// What follows from an input: first the record, then the effects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Step {
    /// Facts for the ledger, in order, in one transaction.
    pub events: Vec<Event>,
    /// What to do then, in order.
    pub effects: Vec<Effect>,
}

/// Why an input was refused; nothing was changed by it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The submission cannot be taken.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// There is no such task, or it ended long ago.
    #[error("there is no task `{task}`")]
    UnknownTask {
        /// Which.
        task: TaskId,
    },
    /// The task has ended.
    #[error("task `{task}` has ended already")]
    Finished {
        /// Which.
        task: TaskId,
    },
    /// The report is about an earlier start of the task.
    #[error("the report is about start {reported} of task `{task}`, which is at start {current}")]
    Stale {
        /// Which.
        task: TaskId,
        /// What was reported.
        reported: u32,
        /// What is true.
        current: u32,
    },
    /// The report does not fit where the task stands.
    #[error("`{report}` was reported of task `{task}`, which is {phase}")]
    Unexpected {
        /// Which.
        task: TaskId,
        /// Where it stands.
        phase: &'static str,
        /// What was reported.
        report: &'static str,
    },
    /// The scheduler contradicts itself; make a new one from the ledger.
    #[error("the scheduler's own event does not fit its state")]
    Broken(#[source] ApplyError),
}

impl Report {
    /// Its name, for people.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed { .. } => "failed",
            Self::Paused => "paused",
            Self::Unpausable => "unpausable",
            Self::Ended => "ended",
            Self::Reclaimed => "reclaimed",
        }
    }
}
