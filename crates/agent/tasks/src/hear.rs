//! What a report means for a task, by where the task stands.
//!
//! One exhaustive table; a pair that cannot be is refused by name. Changes
//! nothing. Next: `scheduler` acts on it.

use crate::event::EndWhy;
use crate::phase::Phase;
use crate::step::Report;

/// What follows from a report.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It did what it was for.
    Success,
    /// It failed by itself, for this reason.
    Failure(String),
    /// It is gone for a reason that is not its own.
    Gone(EndWhy),
    /// It is frozen.
    Frozen,
    /// It cannot be frozen.
    Unpausable,
    /// Nothing: the answer to an order that another one has overtaken.
    Overtaken,
}

/// What a report means; nothing where it cannot be.
pub(crate) fn hear(phase: &Phase, report: Report) -> Option<Heard> {
    match phase {
        Phase::Waiting | Phase::Queued { .. } | Phase::Finished { .. } => match report {
            Report::Succeeded
            | Report::Failed { .. }
            | Report::Paused
            | Report::Unpausable
            | Report::Ended
            | Report::Reclaimed => None,
        },
        // A frozen task can have ended just before it froze.
        Phase::Running { .. } | Phase::Warned { .. } | Phase::Paused { .. } => match report {
            Report::Succeeded => Some(Heard::Success),
            Report::Failed { reason } => Some(Heard::Failure(reason)),
            Report::Reclaimed => Some(Heard::Gone(EndWhy::Memory)),
            Report::Paused | Report::Unpausable | Report::Ended => None,
        },
        Phase::Pausing { .. } => match report {
            Report::Succeeded => Some(Heard::Success),
            Report::Failed { reason } => Some(Heard::Failure(reason)),
            Report::Reclaimed => Some(Heard::Gone(EndWhy::Memory)),
            Report::Paused => Some(Heard::Frozen),
            Report::Unpausable => Some(Heard::Unpausable),
            Report::Ended => None,
        },
        Phase::Ending { why, .. } => match (why, report) {
            // It was faster than the order; only nobody wants it if cancelled.
            (EndWhy::Memory | EndWhy::Time, Report::Succeeded) => Some(Heard::Success),
            (EndWhy::Cancelled, Report::Succeeded)
            | (
                EndWhy::Cancelled | EndWhy::Memory | EndWhy::Time,
                Report::Ended | Report::Failed { .. } | Report::Reclaimed,
            ) => Some(Heard::Gone(*why)),
            (
                EndWhy::Cancelled | EndWhy::Memory | EndWhy::Time,
                Report::Paused | Report::Unpausable,
            ) => Some(Heard::Overtaken),
        },
    }
}
