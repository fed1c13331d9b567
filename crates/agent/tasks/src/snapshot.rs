//! The state of a scheduler as a value: to be kept, and made from events.
//!
//! Holds only what follows from events; never how full memory is or what time
//! it is, which must be told anew. Next: `Scheduler::resume`.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_base::id::TaskId;
use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::limits::{LONGEST_QUEUE, Limits, LimitsError};
use crate::phase::Phase;
use crate::step::StepError;
use crate::submit;
use crate::table::{ApplyError, REMEMBERED, Record, Table};

/// What a scheduler knows, without its indexes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    version: u32,
    next_order: u64,
    /// In the order of their submission.
    tasks: Vec<Record>,
    /// Finished tasks that are still known, in the order of their end.
    finished: Vec<TaskId>,
}

/// Why a snapshot is of no use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    /// The limits make no sense.
    #[error("the limits cannot be kept to")]
    Limits(#[from] LimitsError),
    /// It was written by another version.
    #[error("version {version} of the tasks' snapshot is not known")]
    Version {
        /// Which.
        version: u32,
    },
    /// It holds more tasks than there can be.
    #[error("the tasks' snapshot holds {count} tasks, which is more than there can be")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// It says two things about one task.
    #[error("the tasks' snapshot contradicts itself about task `{task}`")]
    Contradiction {
        /// Which.
        task: TaskId,
    },
    /// An event does not follow from what came before.
    #[error("the tasks' events do not follow from each other")]
    Event(#[from] ApplyError),
    /// What was running could not be put back.
    #[error("the tasks that were running could not be put back")]
    Restart(#[from] StepError),
}

const VERSION: u32 = 1;

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            version: VERSION,
            next_order: 0,
            tasks: Vec::new(),
            finished: Vec::new(),
        }
    }
}

impl Snapshot {
    /// This state after these events, which must follow from it.
    ///
    /// # Errors
    /// The snapshot or an event is not what a scheduler made.
    pub fn after<'a>(
        &self,
        events: impl IntoIterator<Item = &'a Event>,
    ) -> Result<Self, ResumeError> {
        let mut table = self.to_table(Limits::default())?;
        for event in events {
            table.apply(event)?;
        }
        Ok(Self::of_table(&table))
    }

    pub(crate) fn of_table(table: &Table) -> Self {
        Self {
            version: VERSION,
            next_order: table.next_order(),
            tasks: table.records().into_iter().cloned().collect(),
            finished: table.finished().collect(),
        }
    }

    pub(crate) fn to_table(&self, limits: Limits) -> Result<Table, ResumeError> {
        if self.version != VERSION {
            return Err(ResumeError::Version {
                version: self.version,
            });
        }
        let most = usize::try_from(LONGEST_QUEUE).unwrap_or(usize::MAX) + REMEMBERED;
        let count = self.tasks.len().max(self.finished.len());
        if count > most {
            return Err(ResumeError::TooMany { count });
        }
        self.check()?;
        let mut table = Table::new(limits);
        for record in &self.tasks {
            table.insert(record.clone());
        }
        for record in &self.tasks {
            let missing = table.link(record.task.id);
            let finished = matches!(record.phase, Phase::Finished { .. });
            if !finished && (missing > 0) != (record.phase == Phase::Waiting) {
                return Err(ResumeError::Contradiction {
                    task: record.task.id,
                });
            }
        }
        for task in &self.finished {
            table.remember(*task);
        }
        Ok(table)
    }

    fn check(&self) -> Result<(), ResumeError> {
        let mut ids = BTreeSet::new();
        let mut ended = BTreeSet::new();
        let mut waiting = BTreeMap::new();
        let mut last = None;
        for record in &self.tasks {
            let task = record.task.id;
            let in_order = last < Some(record.order) && record.order < self.next_order;
            let bounded = submit::check_one(&record.task).is_ok();
            if !in_order || !bounded || !ids.insert(task) {
                return Err(ResumeError::Contradiction { task });
            }
            last = Some(record.order);
            if matches!(record.phase, Phase::Finished { .. }) {
                ended.insert(task);
            }
            if record.phase == Phase::Waiting {
                waiting.insert(task, &record.task);
            }
        }
        let circle = submit::find_cycle(&waiting);
        if let Some((task, _)) = circle.and_then(|circle| circle.into_iter().next()) {
            return Err(ResumeError::Contradiction { task });
        }
        for task in &self.finished {
            if !ended.remove(task) {
                return Err(ResumeError::Contradiction { task: *task });
            }
        }
        match ended.first() {
            Some(task) => Err(ResumeError::Contradiction { task: *task }),
            None => Ok(()),
        }
    }
}
