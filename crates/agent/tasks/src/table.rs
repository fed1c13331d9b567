//! All tasks and the indexes over them; applying an event is the only change.
//!
//! Every access is one operation on a tree, counted in `work`, so that a test
//! can hold the sum. Never decides anything: which event comes next is the
//! business of `scheduler`. Next: `phase` for what each change means.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_base::id::TaskId;
use serde::{Deserialize, Serialize};

use crate::event::{Change, Event, RequeueWhy};
use crate::limits::Limits;
use crate::phase::Phase;
use crate::task::{Outcome, Priority, Task, Word};

/// So many finished tasks are remembered, so that others can depend on them.
pub const REMEMBERED: usize = 1_024;

/// Why an event cannot be applied: it was not made from this state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The event names a task that does not exist.
    #[error("there is no task `{task}`")]
    UnknownTask {
        /// Which.
        task: TaskId,
    },
    /// The event submits a task that exists.
    #[error("task `{task}` exists already")]
    Duplicate {
        /// Which.
        task: TaskId,
    },
    /// The change is illegal where the task stands.
    #[error("`{event}` does not fit task `{task}`, which is {phase}")]
    Illegal {
        /// Which.
        task: TaskId,
        /// Where it stands.
        phase: &'static str,
        /// What the event is called.
        event: &'static str,
    },
}

/// What is kept of one task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) task: Task,
    /// Its place among all submissions.
    pub(crate) order: u64,
    /// How often it has risen.
    pub(crate) risen: u8,
    /// How often it was started.
    pub(crate) attempt: u32,
    /// How often a crash ended it.
    pub(crate) interruptions: u32,
    /// How often it was ended to get memory back.
    pub(crate) reclaimed: u32,
    /// How long this attempt ran before its current stretch.
    pub(crate) used: Duration,
    /// Whether freezing it was tried in vain.
    pub(crate) unpausable: bool,
    pub(crate) phase: Phase,
}

impl Record {
    /// Its priority, with what waiting added.
    pub(crate) fn level(&self) -> Priority {
        self.task.priority.risen(self.risen)
    }

    /// How long this attempt has run.
    pub(crate) fn ran(&self, now: Timestamp) -> Duration {
        let stretch = self.phase.running_since().map(|since| now.since(since));
        self.used.saturating_add(stretch.unwrap_or_default())
    }

    /// Whether so little of its time is left that it is not disturbed.
    pub(crate) fn nearly_done(&self, now: Timestamp) -> bool {
        let time = Duration::from(self.task.time);
        self.ran(now).saturating_mul(5) >= time.saturating_mul(4)
    }

    pub(crate) fn place(&self) -> Place {
        Place {
            level: self.level(),
            order: self.order,
            task: self.task.id,
        }
    }

    /// When its time is over, if it runs.
    pub(crate) fn time_over(&self) -> Option<Timestamp> {
        let left = Duration::from(self.task.time).saturating_sub(self.used);
        self.phase.running_since().map(|since| since.after(left))
    }

    /// When something happens to it by itself.
    fn due(&self, limits: &Limits) -> Option<Timestamp> {
        match &self.phase {
            Phase::Queued { since } | Phase::Paused { since } => {
                (self.level() > Priority::URGENT).then(|| since.after(limits.age.into()))
            }
            Phase::Running { .. } => self.time_over(),
            Phase::Warned { until, .. } => self.time_over().map(|over| over.min(*until)),
            // Whoever was told to pause or end it answers by itself.
            Phase::Waiting
            | Phase::Pausing { .. }
            | Phase::Ending { .. }
            | Phase::Finished { .. } => None,
        }
    }
}

/// A place in a queue: by level, then first come, first served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) level: Priority,
    pub(crate) order: u64,
    pub(crate) task: TaskId,
}

#[derive(Debug)]
struct Entry {
    record: Record,
    /// How many tasks it waits for.
    missing: usize,
    /// Who waits for it.
    dependants: Vec<TaskId>,
}

/// The tasks of one template that are not finished.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    unfinished: usize,
    pub(crate) used: u16,
    pub(crate) queued: BTreeSet<Place>,
    pub(crate) paused: BTreeSet<Place>,
}

/// All tasks that are not finished, and the last of those that are.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) limits: Limits,
    entries: BTreeMap<TaskId, Entry>,
    pub(crate) lanes: BTreeMap<Option<Word>, Lane>,
    timers: BTreeSet<(Timestamp, TaskId)>,
    pub(crate) slots: BTreeSet<TaskId>,
    finished: VecDeque<TaskId>,
    unfinished: usize,
    next_order: u64,
    pub(crate) work: u64,
}

impl Table {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: BTreeMap::new(),
            lanes: BTreeMap::new(),
            timers: BTreeSet::new(),
            slots: BTreeSet::new(),
            finished: VecDeque::new(),
            unfinished: 0,
            next_order: 0,
            work: 0,
        }
    }

    pub(crate) fn get(&self, task: TaskId) -> Option<&Record> {
        self.entries.get(&task).map(|entry| &entry.record)
    }

    pub(crate) fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Everything in the order of submission; takes long.
    pub(crate) fn records(&self) -> Vec<&Record> {
        let mut records: Vec<&Record> = self.entries.values().map(|entry| &entry.record).collect();
        records.sort_unstable_by_key(|record| record.order);
        records
    }

    pub(crate) fn finished(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.finished.iter().copied()
    }

    pub(crate) fn next_order(&self) -> u64 {
        self.next_order
    }

    /// Who waits for a task.
    pub(crate) fn dependants(&self, task: TaskId) -> &[TaskId] {
        self.entries
            .get(&task)
            .map_or(&[], |entry| entry.dependants.as_slice())
    }

    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The first timer behind `last`.
    pub(crate) fn due_after(
        &mut self,
        last: Option<(Timestamp, TaskId)>,
    ) -> Option<(Timestamp, TaskId)> {
        self.work += 1;
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.timers.range((from, Bound::Unbounded)).next().copied()
    }

    /// Applies a fact; on an error nothing was changed.
    pub(crate) fn apply(&mut self, event: &Event) -> Result<(), ApplyError> {
        match event {
            Event::Submitted { at, tasks } => self.submit(*at, tasks),
            Event::Aged { at, tasks } => self.age(*at, tasks),
            Event::Restarted { at } => {
                self.restart(*at);
                Ok(())
            }
            Event::Changed { at, task, change } => {
                let record = self
                    .get(*task)
                    .ok_or(ApplyError::UnknownTask { task: *task })?;
                let counted = match change {
                    Change::Started { attempt } => Some(*attempt) == record.attempt.checked_add(1),
                    Change::Warned { .. }
                    | Change::Spared
                    | Change::Pausing
                    | Change::Paused
                    | Change::Unpausable
                    | Change::Resumed
                    | Change::Ending { .. }
                    | Change::Requeued { .. }
                    | Change::Finished { .. } => true,
                };
                let next = record.phase.after(change, *at).filter(|_| counted);
                let next = next.ok_or_else(|| ApplyError::Illegal {
                    task: *task,
                    phase: record.phase.name(),
                    event: event.kind(),
                })?;
                self.change(*task, *at, change, next);
                Ok(())
            }
        }
    }

    fn submit(&mut self, at: Timestamp, tasks: &[Task]) -> Result<(), ApplyError> {
        let mut fresh = BTreeSet::new();
        for task in tasks {
            if self.entries.contains_key(&task.id) || !fresh.insert(task.id) {
                return Err(ApplyError::Duplicate { task: task.id });
            }
        }
        for task in tasks {
            let record = Record {
                task: task.clone(),
                // Counted on by `insert`.
                order: self.next_order,
                risen: 0,
                attempt: 0,
                interruptions: 0,
                reclaimed: 0,
                used: Duration::ZERO,
                unpausable: false,
                phase: Phase::Waiting,
            };
            self.insert(record);
        }
        for task in tasks {
            if self.link(task.id) == 0 {
                self.set_phase(task.id, Phase::Queued { since: at });
            }
        }
        Ok(())
    }

    /// Puts a task into the table, without its dependencies.
    pub(crate) fn insert(&mut self, record: Record) {
        self.work += 1;
        let task = record.task.id;
        if !matches!(record.phase, Phase::Finished { .. }) {
            self.unfinished += 1;
            let lane = self.lanes.entry(record.task.template.clone()).or_default();
            lane.unfinished += 1;
        }
        self.next_order = self.next_order.max(record.order.saturating_add(1));
        self.index(&record);
        let entry = Entry {
            record,
            missing: 0,
            dependants: Vec::new(),
        };
        self.entries.insert(task, entry);
    }

    /// Counts and joins what a task waits for. What is no longer in the table
    /// has succeeded: a failure takes along whoever waits for it.
    pub(crate) fn link(&mut self, task: TaskId) -> usize {
        let after: BTreeSet<TaskId> = match self.get(task) {
            Some(record) => record.task.after.iter().copied().collect(),
            None => return 0,
        };
        let mut missing = 0;
        for dependency in after {
            self.work += 1;
            if let Some(entry) = self.entries.get_mut(&dependency) {
                match &entry.record.phase {
                    Phase::Finished {
                        outcome: Outcome::Succeeded,
                    } => {}
                    Phase::Finished {
                        outcome: Outcome::Failed { .. } | Outcome::Cancelled { .. },
                    } => missing += 1,
                    Phase::Waiting
                    | Phase::Queued { .. }
                    | Phase::Running { .. }
                    | Phase::Warned { .. }
                    | Phase::Pausing { .. }
                    | Phase::Paused { .. }
                    | Phase::Ending { .. } => {
                        entry.dependants.push(task);
                        missing += 1;
                    }
                }
            }
        }
        if let Some(entry) = self.entries.get_mut(&task) {
            entry.missing = missing;
        }
        missing
    }

    fn age(&mut self, at: Timestamp, tasks: &[TaskId]) -> Result<(), ApplyError> {
        for task in tasks {
            match self.get(*task).map(|record| &record.phase) {
                Some(Phase::Queued { .. } | Phase::Paused { .. }) => {}
                Some(phase) => {
                    return Err(ApplyError::Illegal {
                        task: *task,
                        phase: phase.name(),
                        event: "task.aged",
                    });
                }
                None => return Err(ApplyError::UnknownTask { task: *task }),
            }
        }
        for task in tasks {
            self.update(*task, |record| {
                record.risen = record.risen.saturating_add(1);
                if let Phase::Queued { since } | Phase::Paused { since } = &mut record.phase {
                    *since = at;
                }
            });
        }
        Ok(())
    }

    fn restart(&mut self, at: Timestamp) {
        let queued: Vec<TaskId> = self
            .lanes
            .values()
            .flat_map(|lane| lane.queued.iter().map(|place| place.task))
            .collect();
        for task in queued {
            self.set_phase(task, Phase::Queued { since: at });
        }
    }

    fn change(&mut self, task: TaskId, at: Timestamp, change: &Change, next: Phase) {
        self.update(task, |record| {
            match change {
                Change::Started { attempt } => {
                    record.attempt = *attempt;
                    record.used = Duration::ZERO;
                }
                Change::Paused => record.used = record.ran(at),
                Change::Unpausable => record.unpausable = true,
                Change::Requeued { why } => match why {
                    RequeueWhy::Memory => record.reclaimed = record.reclaimed.saturating_add(1),
                    RequeueWhy::Crash => {
                        record.interruptions = record.interruptions.saturating_add(1);
                    }
                },
                Change::Warned { .. }
                | Change::Spared
                | Change::Pausing
                | Change::Resumed
                | Change::Ending { .. }
                | Change::Finished { .. } => {}
            }
            record.phase = next;
        });
        if let Change::Finished { outcome } = change {
            self.finish(task, at, outcome);
        }
    }

    fn finish(&mut self, task: TaskId, at: Timestamp, outcome: &Outcome) {
        let Some(entry) = self.entries.get_mut(&task) else {
            return;
        };
        let dependants = std::mem::take(&mut entry.dependants);
        let template = entry.record.task.template.clone();
        self.unfinished = self.unfinished.saturating_sub(1);
        if let Some(lane) = self.lanes.get_mut(&template) {
            lane.unfinished = lane.unfinished.saturating_sub(1);
            if lane.unfinished == 0 {
                self.lanes.remove(&template);
            }
        }
        if *outcome == Outcome::Succeeded {
            for dependant in dependants {
                self.satisfy(dependant, at);
            }
        }
        self.remember(task);
    }

    /// Keeps a finished task, and lets the oldest go.
    pub(crate) fn remember(&mut self, task: TaskId) {
        self.finished.push_back(task);
        if self.finished.len() > REMEMBERED
            && let Some(oldest) = self.finished.pop_front()
        {
            self.work += 1;
            self.entries.remove(&oldest);
        }
    }

    fn satisfy(&mut self, dependant: TaskId, at: Timestamp) {
        self.work += 1;
        let Some(entry) = self.entries.get_mut(&dependant) else {
            return;
        };
        entry.missing = entry.missing.saturating_sub(1);
        if entry.missing == 0 && entry.record.phase == Phase::Waiting {
            self.set_phase(dependant, Phase::Queued { since: at });
        }
    }

    fn set_phase(&mut self, task: TaskId, phase: Phase) {
        self.update(task, |record| record.phase = phase);
    }

    /// Changes one record and everything that is sorted by it.
    fn update(&mut self, task: TaskId, change: impl FnOnce(&mut Record)) {
        // Out of the map and back, because the indexes need the record too.
        let Some(mut entry) = self.entries.remove(&task) else {
            return;
        };
        self.work += 2;
        self.unindex(&entry.record);
        change(&mut entry.record);
        self.index(&entry.record);
        self.entries.insert(task, entry);
    }

    fn index(&mut self, record: &Record) {
        self.work += 3;
        let task = record.task.id;
        if let Some(due) = record.due(&self.limits) {
            self.timers.insert((due, task));
        }
        let Some(lane) = self.lanes.get_mut(&record.task.template) else {
            return;
        };
        match &record.phase {
            Phase::Queued { .. } => {
                lane.queued.insert(record.place());
            }
            Phase::Paused { .. } => {
                lane.paused.insert(record.place());
            }
            phase => {
                if phase.holds_slot() && self.slots.insert(task) {
                    lane.used += 1;
                }
            }
        }
    }

    fn unindex(&mut self, record: &Record) {
        self.work += 3;
        let task = record.task.id;
        if let Some(due) = record.due(&self.limits) {
            self.timers.remove(&(due, task));
        }
        let Some(lane) = self.lanes.get_mut(&record.task.template) else {
            return;
        };
        lane.queued.remove(&record.place());
        lane.paused.remove(&record.place());
        if self.slots.remove(&task) {
            lane.used = lane.used.saturating_sub(1);
        }
    }
}
