//! What the world knows about one task, found out without the scheduler.

use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_tasks::{EndWhy, Limits, Outcome, Priority, Task};

/// How a task's own work goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Succeeds,
    Fails,
}

/// What the processes of a task are doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Process {
    /// There are none.
    None,
    /// They run.
    Running { since: Timestamp },
    /// They are frozen.
    Frozen { since: Timestamp },
}

#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) task: Task,
    pub(crate) order: u64,
    pub(crate) fate: Fate,
    /// How long its work takes.
    pub(crate) duration: Duration,
    pub(crate) process: Process,
    /// How often it was started.
    pub(crate) attempt: u32,
    /// How long this attempt ran before its current stretch.
    pub(crate) ran: Duration,
    /// How often it rose before it waits now.
    pub(crate) risen: u8,
    /// Since when it could start, if it could and did not.
    pub(crate) queued: Option<Timestamp>,
    pub(crate) warned: Option<Timestamp>,
    pub(crate) pausing: bool,
    pub(crate) ending: Option<EndWhy>,
    pub(crate) unpausable: bool,
    /// How often it was ended for memory.
    pub(crate) reclaimed: u32,
    /// How often it was running in a crash.
    pub(crate) crashes: u32,
    /// Whether somebody cancelled it, and was told that it is so.
    pub(crate) cancelled: bool,
    /// Its ends, of which there should be one.
    pub(crate) outcomes: Vec<Outcome>,
}

impl Model {
    pub(crate) fn new(task: Task, order: u64, fate: Fate, duration: Duration) -> Self {
        Self {
            task,
            order,
            fate,
            duration,
            process: Process::None,
            attempt: 0,
            ran: Duration::ZERO,
            risen: 0,
            queued: None,
            warned: None,
            pausing: false,
            ending: None,
            unpausable: false,
            reclaimed: 0,
            crashes: 0,
            cancelled: false,
            outcomes: Vec::new(),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.process, Process::Running { .. })
    }

    /// Frozen, and waiting to go on.
    pub(crate) fn is_paused(&self) -> bool {
        matches!(self.process, Process::Frozen { .. }) && self.ending.is_none()
    }

    pub(crate) fn waiting_since(&self) -> Option<Timestamp> {
        match self.process {
            Process::Frozen { since } if self.ending.is_none() => Some(since),
            Process::None => self.queued,
            Process::Running { .. } | Process::Frozen { .. } => None,
        }
    }

    fn risen_by(&self, now: Timestamp, limits: &Limits) -> u8 {
        let thresholds = self.waiting_since().map_or(0, |since| {
            now.since(since).as_millis() / u128::from(limits.age.millis)
        });
        self.risen.saturating_add(thresholds.min(100) as u8)
    }

    /// Its priority, with what waiting should have added.
    pub(crate) fn level(&self, now: Timestamp, limits: &Limits) -> Priority {
        let base = self.task.priority.number();
        if base <= 2 {
            return self.task.priority;
        }
        let risen = base.saturating_sub(self.risen_by(now, limits)).max(2);
        risen.try_into().unwrap()
    }

    /// Ends a time of waiting and keeps what it earned.
    pub(crate) fn stop_waiting(&mut self, now: Timestamp, limits: &Limits) {
        self.risen = self.task.priority.number() - self.level(now, limits).number();
        self.queued = None;
    }

    pub(crate) fn ran_until(&self, now: Timestamp) -> Duration {
        match self.process {
            Process::Running { since } => self.ran + now.since(since),
            Process::None | Process::Frozen { .. } => self.ran,
        }
    }

    /// When it rises next, if it still can.
    pub(crate) fn rises_at(&self, now: Timestamp, limits: &Limits) -> Option<Timestamp> {
        if self.level(now, limits) <= Priority::URGENT {
            return None;
        }
        let since = self.waiting_since()?;
        let age = u128::from(limits.age.millis);
        let passed = now.since(since).as_millis() / age;
        let next = (passed + 1) * age;
        Some(since.after(Duration::from_millis(next.try_into().unwrap())))
    }
}
