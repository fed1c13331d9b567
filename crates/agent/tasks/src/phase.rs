//! Where a task stands, and how each change moves it.
//!
//! The one place that says which change is legal when; everything else asks
//! it. Holds no clock and no slots. Next: `table` keeps the indexes right.

use fluffy_base::Timestamp;
use serde::{Deserialize, Serialize};

use crate::event::{Change, EndWhy};
use crate::task::Outcome;

/// Where a task stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum Phase {
    /// A task that it depends on has not succeeded yet.
    Waiting,
    /// It could start, and waits for a slot.
    Queued {
        /// Since it came here or last rose.
        since: Timestamp,
    },
    /// It runs, in a slot.
    Running {
        /// Since it last began to run.
        since: Timestamp,
    },
    /// It runs and was told that it will be paused.
    Warned {
        /// Since it last began to run.
        since: Timestamp,
        /// When it is paused.
        until: Timestamp,
    },
    /// Its pause was ordered; it has its slot until that is done.
    Pausing {
        /// Since it last began to run.
        since: Timestamp,
    },
    /// It is frozen, has no slot, and waits for one.
    Paused {
        /// Since it came here or last rose.
        since: Timestamp,
    },
    /// Its end was ordered, and is not yet reported.
    Ending {
        /// Why.
        why: EndWhy,
        /// Whether it still has its slot.
        slot: Slot,
    },
    /// It ended; nothing changes any more.
    Finished {
        /// How.
        outcome: Outcome,
    },
}

/// Whether a task that is being ended has a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slot {
    /// It has, until its end is reported.
    Held,
    /// It was paused and has none.
    Free,
}

impl Phase {
    /// The phase after a change; nothing where the change is illegal.
    pub(crate) fn after(&self, change: &Change, at: Timestamp) -> Option<Self> {
        match change {
            Change::Started { .. } => match self {
                Self::Queued { .. } => Some(Self::Running { since: at }),
                Self::Waiting
                | Self::Running { .. }
                | Self::Warned { .. }
                | Self::Pausing { .. }
                | Self::Paused { .. }
                | Self::Ending { .. }
                | Self::Finished { .. } => None,
            },
            Change::Warned { .. }
            | Change::Spared
            | Change::Pausing
            | Change::Paused
            | Change::Unpausable
            | Change::Resumed => self.after_pausing(change, at),
            Change::Ending { why } => self.after_ending(*why),
            Change::Requeued { .. } => match self {
                Self::Running { .. }
                | Self::Warned { .. }
                | Self::Pausing { .. }
                | Self::Paused { .. }
                | Self::Ending { .. } => Some(Self::Queued { since: at }),
                Self::Waiting | Self::Queued { .. } | Self::Finished { .. } => None,
            },
            Change::Finished { outcome } => match self {
                Self::Waiting
                | Self::Queued { .. }
                | Self::Running { .. }
                | Self::Warned { .. }
                | Self::Pausing { .. }
                | Self::Paused { .. }
                | Self::Ending { .. } => Some(Self::Finished {
                    outcome: outcome.clone(),
                }),
                Self::Finished { .. } => None,
            },
        }
    }

    fn after_pausing(&self, change: &Change, at: Timestamp) -> Option<Self> {
        match (self, change) {
            (Self::Running { since }, Change::Warned { until, .. }) => Some(Self::Warned {
                since: *since,
                until: *until,
            }),
            (Self::Warned { since, .. }, Change::Spared)
            | (Self::Pausing { since }, Change::Unpausable) => {
                Some(Self::Running { since: *since })
            }
            (Self::Warned { since, .. }, Change::Pausing) => Some(Self::Pausing { since: *since }),
            (Self::Pausing { .. }, Change::Paused) => Some(Self::Paused { since: at }),
            (Self::Paused { .. }, Change::Resumed) => Some(Self::Running { since: at }),
            (
                Self::Waiting
                | Self::Queued { .. }
                | Self::Running { .. }
                | Self::Warned { .. }
                | Self::Pausing { .. }
                | Self::Paused { .. }
                | Self::Ending { .. }
                | Self::Finished { .. },
                Change::Started { .. }
                | Change::Warned { .. }
                | Change::Spared
                | Change::Pausing
                | Change::Paused
                | Change::Unpausable
                | Change::Resumed
                | Change::Ending { .. }
                | Change::Requeued { .. }
                | Change::Finished { .. },
            ) => None,
        }
    }

    fn after_ending(&self, why: EndWhy) -> Option<Self> {
        match self {
            Self::Running { .. } | Self::Warned { .. } | Self::Pausing { .. } => {
                Some(Self::Ending {
                    why,
                    slot: Slot::Held,
                })
            }
            Self::Paused { .. } => Some(Self::Ending {
                why,
                slot: Slot::Free,
            }),
            // What is already being ended can still be cancelled.
            Self::Ending { slot, .. } => {
                (why == EndWhy::Cancelled).then_some(Self::Ending { why, slot: *slot })
            }
            Self::Waiting | Self::Queued { .. } | Self::Finished { .. } => None,
        }
    }

    /// Whether a task in this phase takes up a slot.
    #[must_use]
    pub fn holds_slot(&self) -> bool {
        match self {
            Self::Running { .. }
            | Self::Warned { .. }
            | Self::Pausing { .. }
            | Self::Ending {
                slot: Slot::Held, ..
            } => true,
            Self::Waiting
            | Self::Queued { .. }
            | Self::Paused { .. }
            | Self::Ending {
                slot: Slot::Free, ..
            }
            | Self::Finished { .. } => false,
        }
    }

    /// Since when the current stretch runs; nothing when it does not.
    pub(crate) fn running_since(&self) -> Option<Timestamp> {
        match self {
            Self::Running { since } | Self::Warned { since, .. } | Self::Pausing { since } => {
                Some(*since)
            }
            Self::Waiting
            | Self::Queued { .. }
            | Self::Paused { .. }
            | Self::Ending { .. }
            | Self::Finished { .. } => None,
        }
    }

    /// Its name, for people.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Queued { .. } => "queued",
            Self::Running { .. } => "running",
            Self::Warned { .. } => "warned",
            Self::Pausing { .. } => "pausing",
            Self::Paused { .. } => "paused",
            Self::Ending { .. } => "ending",
            Self::Finished { .. } => "finished",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::RequeueWhy;
    use fluffy_base::id::TaskId;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    fn phases() -> Vec<Phase> {
        let ending = |slot| Phase::Ending {
            why: EndWhy::Memory,
            slot,
        };
        vec![
            Phase::Waiting,
            Phase::Queued { since: at(1) },
            Phase::Running { since: at(1) },
            Phase::Warned {
                since: at(1),
                until: at(2),
            },
            Phase::Pausing { since: at(1) },
            Phase::Paused { since: at(1) },
            ending(Slot::Held),
            ending(Slot::Free),
            Phase::Finished {
                outcome: Outcome::Succeeded,
            },
        ]
    }

    /// One row for each change, one column for each phase: where it leads.
    #[test]
    fn every_pair_of_phase_and_change_is_legal_or_refused_as_written() {
        let started = Change::Started { attempt: 1 };
        let warned = Change::Warned {
            until: at(9),
            instead: TaskId::from_bits(1),
        };
        let memory = Change::Ending {
            why: EndWhy::Memory,
        };
        let cancelled = Change::Ending {
            why: EndWhy::Cancelled,
        };
        let requeued = Change::Requeued {
            why: RequeueWhy::Crash,
        };
        let finished = Change::Finished {
            outcome: Outcome::Succeeded,
        };
        #[rustfmt::skip]
        let rows = [
            // waiting queued running warned pausing paused ending-held ending-free finished
            (started,            "- running - - - - - - -"),
            (warned,             "- - warned - - - - - -"),
            (Change::Spared,     "- - - running - - - - -"),
            (Change::Pausing,    "- - - pausing - - - - -"),
            (Change::Paused,     "- - - - paused - - - -"),
            (Change::Unpausable, "- - - - running - - - -"),
            (Change::Resumed,    "- - - - - running - - -"),
            (memory,             "- - ending ending ending ending - - -"),
            (cancelled,          "- - ending ending ending ending ending ending -"),
            (requeued,           "- - queued queued queued queued queued queued -"),
            (finished,           "finished finished finished finished finished finished finished finished -"),
        ];
        for (change, expected) in rows {
            let reached: Vec<_> = phases()
                .iter()
                .map(|phase| phase.after(&change, at(5)).map_or("-", |next| next.name()))
                .collect();
            assert_eq!(reached.join(" "), expected, "{change:?}");
        }
    }

    #[test]
    fn a_slot_is_kept_until_a_pause_or_an_end_is_done() {
        let held: Vec<bool> = phases().iter().map(Phase::holds_slot).collect();
        let expected = [false, false, true, true, true, false, true, false, false];
        assert_eq!(held, expected);
    }
}
