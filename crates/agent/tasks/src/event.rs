//! What happened to tasks: facts for the ledger, from which all follows.
//!
//! The state of a scheduler is a projection of these and nothing else.
//! Each stays far below the ledger's limit for one event. Next: `snapshot`
//! applies them.

use fluffy_base::Timestamp;
use fluffy_base::id::TaskId;
use serde::{Deserialize, Serialize};

use crate::task::{Outcome, Task};

/// One fact about tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Tasks were taken, together.
    Submitted {
        /// When.
        at: Timestamp,
        /// Which, first come first served in this order.
        tasks: Vec<Task>,
    },
    /// Tasks have waited so long that each rises by one level.
    Aged {
        /// When their waiting reached the threshold.
        at: Timestamp,
        /// Which; at most [`Event::MOST_AGED`].
        tasks: Vec<TaskId>,
    },
    /// The kernel starts again after an end of any kind; waiting starts anew.
    Restarted {
        /// When.
        at: Timestamp,
    },
    /// Something happened to one task.
    Changed {
        /// When.
        at: Timestamp,
        /// Which.
        task: TaskId,
        /// What.
        change: Change,
    },
}

/// What can happen to one task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// It got a slot and was started from the beginning.
    Started {
        /// Counts its starts from 1.
        attempt: u32,
    },
    /// It was told that it will be paused.
    Warned {
        /// When.
        until: Timestamp,
        /// The task that needs its slot.
        instead: TaskId,
    },
    /// Its slot is no longer needed: the warning is void.
    Spared,
    /// Its pause was ordered.
    Pausing,
    /// It is frozen, and its slot free.
    Paused,
    /// It cannot be frozen and runs on; it is not asked again.
    Unpausable,
    /// It got a slot again and runs on.
    Resumed,
    /// Its end was ordered.
    Ending {
        /// Why.
        why: EndWhy,
    },
    /// It goes back to its place in the queue, to start from the beginning.
    Requeued {
        /// Why.
        why: RequeueWhy,
    },
    /// It ended.
    Finished {
        /// How.
        outcome: Outcome,
    },
}

/// Why a task's end was ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndWhy {
    /// Somebody cancelled it.
    Cancelled,
    /// It gives way, and memory is too full to freeze it.
    Memory,
    /// Its time is over.
    Time,
}

/// Why a task starts from the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequeueWhy {
    /// It was ended to get memory back; happens at most once.
    Memory,
    /// The kernel ended while it ran.
    Crash,
}

impl Event {
    /// The most tasks that one event of ageing names.
    pub const MOST_AGED: usize = 256;

    /// What the ledger calls it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Submitted { .. } => "task.submitted",
            Self::Aged { .. } => "task.aged",
            Self::Restarted { .. } => "task.restarted",
            Self::Changed { change, .. } => match change {
                Change::Started { .. } => "task.started",
                Change::Warned { .. } => "task.warned",
                Change::Spared => "task.spared",
                Change::Pausing => "task.pausing",
                Change::Paused => "task.paused",
                Change::Unpausable => "task.unpausable",
                Change::Resumed => "task.resumed",
                Change::Ending { .. } => "task.ending",
                Change::Requeued { .. } => "task.requeued",
                Change::Finished { .. } => "task.finished",
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_reads_as_people_expect_and_reads_back() {
        let event = Event::Changed {
            at: Timestamp::from_micros(0),
            task: TaskId::from_bits(1),
            change: Change::Finished {
                outcome: Outcome::Cancelled { with: None },
            },
        };
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(
            json,
            r#"{"event":"changed","at":"1970-01-01T00:00:00.000000Z","task":"tsk_00000000000000000000000001","change":{"change":"finished","outcome":{"outcome":"cancelled"}}}"#
        );
        assert_eq!(serde_json::from_str::<Event>(&json).unwrap(), event);
        assert_eq!(event.kind(), "task.finished");
    }
}
