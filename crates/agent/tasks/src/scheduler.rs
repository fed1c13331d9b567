//! The scheduler: an input and the time in, events and effects out.
//!
//! Reads no clock, starts nothing, waits for nothing. After every input it
//! lets time pass, fills free slots, and asks who gives way; each of these is
//! a few operations on trees, however many tasks wait. Next: `table` for what
//! it knows, `give_way` for preemption.

use std::collections::VecDeque;

use fluffy_base::Timestamp;
use fluffy_base::id::TaskId;

use crate::event::{Change, EndWhy, Event, RequeueWhy};
use crate::give_way::{self, GiveWay, Waiting};
use crate::hear::{Heard, hear};
use crate::limits::{Limits, LimitsError, Memory};
use crate::phase::Phase;
use crate::snapshot::{ResumeError, Snapshot};
use crate::step::{Effect, Input, Report, Step, StepError};
use crate::submit;
use crate::table::{Record, Table};
use crate::task::{Cause, MAX_REASON, Origin, Outcome, Priority, Task, shorten};

/// A task that was running during so many crashes is not started again: it
/// may be what causes them.
pub const MOST_CRASHES: u32 = 3;

/// Decides which task runs when.
#[derive(Debug)]
pub struct Scheduler {
    table: Table,
    memory: Memory,
    /// The latest time that was told; it never goes back.
    clock: Timestamp,
}

/// Where one task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status<'a> {
    /// As it was submitted.
    pub task: &'a Task,
    /// Where it stands.
    pub phase: &'a Phase,
    /// Its priority, with what waiting added.
    pub level: Priority,
    /// How often it was started.
    pub attempt: u32,
}

impl Scheduler {
    /// An empty scheduler.
    ///
    /// # Errors
    /// The limits make no sense.
    pub fn new(limits: Limits) -> Result<Self, LimitsError> {
        limits.check()?;
        Ok(Self {
            table: Table::new(limits),
            memory: Memory::default(),
            clock: Timestamp::MIN,
        })
    }

    /// Goes on after an end of the kernel of any kind, in which everything
    /// that ran or was frozen ended too.
    ///
    /// What ran goes back to its place in the queue; what was being ended is
    /// as if it had been. How full memory is must be told again.
    ///
    /// # Errors
    /// The limits make no sense, or the snapshot contradicts itself.
    pub fn resume(
        limits: Limits,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> Result<(Self, Step), ResumeError> {
        limits.check()?;
        let mut scheduler = Self {
            table: snapshot.to_table(limits)?,
            memory: Memory::default(),
            clock: now,
        };
        let step = scheduler.restart()?;
        Ok((scheduler, step))
    }

    /// Takes an input at a time, and says what follows.
    ///
    /// Time never goes back: an earlier one counts as the last. A driver
    /// should count it from one start with a clock that cannot be set.
    ///
    /// # Errors
    /// The input was refused and changed nothing; the time did not pass
    /// either. After [`StepError::Broken`] the scheduler must be dropped.
    pub fn step(&mut self, now: Timestamp, input: Input) -> Result<Step, StepError> {
        let mut turn = Turn {
            now: now.max(self.clock),
            step: Step::default(),
        };
        match input {
            Input::Submit { tasks } => self.submit(&mut turn, tasks)?,
            Input::Cancel { task } => self.cancel(&mut turn, task)?,
            Input::Report {
                task,
                attempt,
                report,
            } => self.report(&mut turn, task, attempt, report)?,
            Input::Memory(memory) => self.memory = memory,
            Input::Wake => {}
        }
        self.clock = turn.now;
        self.pass_time(&mut turn)?;
        self.schedule(&mut turn)?;
        Ok(turn.step)
    }

    /// When the next [`Input::Wake`] is due; nothing happens before it
    /// without another input.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        self.table.next_due()
    }

    /// Where a task stands; nothing if it is not known, or no longer.
    #[must_use]
    pub fn status(&self, task: TaskId) -> Option<Status<'_>> {
        self.table.get(task).map(|record| Status {
            task: &record.task,
            phase: &record.phase,
            level: record.level(),
            attempt: record.attempt,
        })
    }

    /// How many tasks are not finished.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.table.unfinished()
    }

    /// How many slots are taken.
    #[must_use]
    pub fn slots_taken(&self) -> usize {
        self.table.slots.len()
    }

    /// Everything that must survive, as a value.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of_table(&self.table)
    }

    /// How many operations on its indexes it has made so far.
    #[must_use]
    pub fn work(&self) -> u64 {
        self.table.work
    }

    fn submit(&mut self, turn: &mut Turn, tasks: Vec<Task>) -> Result<(), StepError> {
        submit::check(&self.table, &tasks)?;
        let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
        let at = turn.now;
        self.record(turn, Event::Submitted { at, tasks })?;
        for id in ids {
            self.fail_for_finished(turn, id)?;
        }
        Ok(())
    }

    /// Ends a new task at once if something it waits for has failed before.
    fn fail_for_finished(&mut self, turn: &mut Turn, task: TaskId) -> Result<(), StepError> {
        let Some(record) = self.unfinished_record(task) else {
            return Ok(());
        };
        let outcomes = record.task.after.iter().filter_map(|dependency| {
            let record = self.table.get(*dependency)?;
            match &record.phase {
                Phase::Finished { outcome } => inherited(outcome, record),
                Phase::Waiting
                | Phase::Queued { .. }
                | Phase::Running { .. }
                | Phase::Warned { .. }
                | Phase::Pausing { .. }
                | Phase::Paused { .. }
                | Phase::Ending { .. } => None,
            }
        });
        match outcomes.take(1).last() {
            Some(outcome) => self.finish(turn, task, outcome),
            None => Ok(()),
        }
    }

    fn unfinished_record(&self, task: TaskId) -> Option<&Record> {
        self.table
            .get(task)
            .filter(|record| !matches!(record.phase, Phase::Finished { .. }))
    }

    fn cancel(&mut self, turn: &mut Turn, task: TaskId) -> Result<(), StepError> {
        let record = self.table.get(task);
        let record = record.ok_or(StepError::UnknownTask { task })?;
        let cancelled = Outcome::Cancelled { with: None };
        match &record.phase {
            Phase::Waiting | Phase::Queued { .. } => self.finish(turn, task, cancelled),
            Phase::Running { .. }
            | Phase::Warned { .. }
            | Phase::Pausing { .. }
            | Phase::Paused { .. }
            | Phase::Ending {
                why: EndWhy::Memory | EndWhy::Time,
                ..
            } => {
                let inherited = inherited(&cancelled, record);
                let dependants = self.table.dependants(task).to_vec();
                self.end(turn, task, EndWhy::Cancelled)?;
                self.finish_all(turn, dependants, inherited)
            }
            // Asked twice; it is on its way.
            Phase::Ending {
                why: EndWhy::Cancelled,
                ..
            } => Ok(()),
            Phase::Finished { .. } => Err(StepError::Finished { task }),
        }
    }

    fn report(
        &mut self,
        turn: &mut Turn,
        task: TaskId,
        attempt: u32,
        report: Report,
    ) -> Result<(), StepError> {
        let record = self.table.get(task);
        let record = record.ok_or(StepError::UnknownTask { task })?;
        if matches!(record.phase, Phase::Finished { .. }) {
            return Err(StepError::Finished { task });
        }
        if record.attempt != attempt {
            return Err(StepError::Stale {
                task,
                reported: attempt,
                current: record.attempt,
            });
        }
        let name = report.name();
        let heard = hear(&record.phase, report).ok_or(StepError::Unexpected {
            task,
            phase: record.phase.name(),
            report: name,
        })?;
        match heard {
            Heard::Success => self.finish(turn, task, Outcome::Succeeded),
            Heard::Failure(reason) => {
                let reason = shorten(&reason, MAX_REASON);
                let cause = Cause::Itself { reason };
                self.finish(turn, task, Outcome::Failed { cause })
            }
            Heard::Gone(why) => self.ended(turn, task, why),
            Heard::Frozen => self.change(turn, task, Change::Paused),
            Heard::Unpausable => self.change(turn, task, Change::Unpausable),
            Heard::Overtaken => Ok(()),
        }
    }

    /// A task is gone whose end was ordered, or that had to go.
    ///
    /// Ended for memory, it goes back to its place in the queue once; the
    /// second time it fails with that cause, because a task that never fits
    /// would otherwise be started for ever.
    fn ended(&mut self, turn: &mut Turn, task: TaskId, why: EndWhy) -> Result<(), StepError> {
        let reclaimed = self.table.get(task).map_or(0, |record| record.reclaimed);
        let failed = |cause| Outcome::Failed { cause };
        match why {
            EndWhy::Cancelled => self.finish(turn, task, Outcome::Cancelled { with: None }),
            EndWhy::Time => self.finish(turn, task, failed(Cause::Time)),
            EndWhy::Memory if reclaimed > 0 => self.finish(turn, task, failed(Cause::Memory)),
            EndWhy::Memory => {
                let why = RequeueWhy::Memory;
                self.change(turn, task, Change::Requeued { why })
            }
        }
    }

    /// Records how a task ended, and everything that follows for others.
    fn finish(&mut self, turn: &mut Turn, task: TaskId, outcome: Outcome) -> Result<(), StepError> {
        let record = self.table.get(task);
        let inherited = record.and_then(|record| inherited(&outcome, record));
        let dependants = self.table.dependants(task).to_vec();
        self.change(turn, task, Change::Finished { outcome })?;
        self.finish_all(turn, dependants, inherited)
    }

    /// Ends these and everything that depends on them, however indirectly.
    fn finish_all(
        &mut self,
        turn: &mut Turn,
        dependants: Vec<TaskId>,
        outcome: Option<Outcome>,
    ) -> Result<(), StepError> {
        let Some(outcome) = outcome else {
            return Ok(());
        };
        let mut next = VecDeque::from(dependants);
        while let Some(dependant) = next.pop_front() {
            self.table.work += 1;
            if self.unfinished_record(dependant).is_none() {
                continue;
            }
            next.extend(self.table.dependants(dependant));
            let outcome = outcome.clone();
            self.change(turn, dependant, Change::Finished { outcome })?;
        }
        Ok(())
    }

    /// What is due by now: rising, and the end of a task's time.
    fn pass_time(&mut self, turn: &mut Turn) -> Result<(), StepError> {
        let mut last = None;
        let mut aged = Vec::new();
        loop {
            let due = self.table.due_after(last).filter(|(at, _)| *at <= turn.now);
            if let Some((at, _)) = last
                && !aged.is_empty()
                && (due.is_none_or(|(next, _)| next != at) || aged.len() >= Event::MOST_AGED)
            {
                // Before going on: those that rose may rise again by then.
                let tasks = std::mem::take(&mut aged);
                self.record(turn, Event::Aged { at, tasks })?;
                continue;
            }
            let Some((at, task)) = due else {
                return Ok(());
            };
            last = Some((at, task));
            let Some(record) = self.table.get(task) else {
                continue;
            };
            match &record.phase {
                Phase::Queued { .. } | Phase::Paused { .. } => aged.push(task),
                Phase::Running { .. } | Phase::Warned { .. } => {
                    // If not its time, its warning is over: `schedule` looks.
                    if record.time_over().is_some_and(|over| over <= turn.now) {
                        self.end(turn, task, EndWhy::Time)?;
                    }
                }
                Phase::Waiting
                | Phase::Pausing { .. }
                | Phase::Ending { .. }
                | Phase::Finished { .. } => {}
            }
        }
    }

    /// Fills the free slots, then makes room where somebody lower runs.
    fn schedule(&mut self, turn: &mut Turn) -> Result<(), StepError> {
        while let Some(task) = self.next_to_run() {
            self.run(turn, task)?;
        }
        let found = give_way::find(&self.table, self.memory, turn.now);
        self.table.work += found.looks;
        self.spare(turn, &found.yields)?;
        for give_way in found.yields {
            self.make_room(turn, give_way)?;
        }
        Ok(())
    }

    /// The most urgent task that waits and for which there is a slot.
    fn next_to_run(&mut self) -> Option<TaskId> {
        self.table.work += 1;
        let table = &self.table;
        if table.slots.len() >= usize::from(table.limits.total) {
            return None;
        }
        let mut waiting = Waiting::of(table, self.memory);
        for (template, lane) in &table.lanes {
            if lane.used >= table.limits.of(template.as_ref()) {
                waiting.skip(template.as_ref());
            }
        }
        waiting.next().map(|(place, _)| place.task)
    }

    fn run(&mut self, turn: &mut Turn, task: TaskId) -> Result<(), StepError> {
        let Some(record) = self.table.get(task) else {
            return Err(StepError::UnknownTask { task });
        };
        if matches!(record.phase, Phase::Paused { .. }) {
            turn.step.effects.push(Effect::Resume { task });
            return self.change(turn, task, Change::Resumed);
        }
        let attempt = record.attempt.saturating_add(1);
        turn.step.effects.push(Effect::Start {
            task: Box::new(record.task.clone()),
            attempt,
        });
        self.change(turn, task, Change::Started { attempt })
    }

    /// Takes the warning from those whose slot is no longer needed.
    fn spare(&mut self, turn: &mut Turn, yields: &[GiveWay]) -> Result<(), StepError> {
        let warned = self.table.slots.iter().filter(|task| {
            let record = self.table.get(**task);
            record.is_some_and(|record| matches!(record.phase, Phase::Warned { .. }))
                && yields.iter().all(|give_way| give_way.task != **task)
        });
        let spared: Vec<TaskId> = warned.copied().collect();
        for task in spared {
            turn.step.effects.push(Effect::Spare { task });
            self.change(turn, task, Change::Spared)?;
        }
        Ok(())
    }

    fn make_room(&mut self, turn: &mut Turn, give_way: GiveWay) -> Result<(), StepError> {
        let GiveWay { task, instead } = give_way;
        if !self.memory.affords_pause() {
            return self.end(turn, task, EndWhy::Memory);
        }
        match self.table.get(task).map(|record| &record.phase) {
            Some(Phase::Running { .. }) => {
                let until = turn.now.after(self.table.limits.warning.into());
                turn.step.effects.push(Effect::Warn { task, until });
                self.change(turn, task, Change::Warned { until, instead })
            }
            Some(Phase::Warned { until, .. }) if *until <= turn.now => {
                turn.step.effects.push(Effect::Pause { task });
                self.change(turn, task, Change::Pausing)
            }
            Some(
                Phase::Warned { .. }
                | Phase::Waiting
                | Phase::Queued { .. }
                | Phase::Pausing { .. }
                | Phase::Paused { .. }
                | Phase::Ending { .. }
                | Phase::Finished { .. },
            )
            | None => Ok(()),
        }
    }

    fn end(&mut self, turn: &mut Turn, task: TaskId, why: EndWhy) -> Result<(), StepError> {
        turn.step.effects.push(Effect::End { task, why });
        self.change(turn, task, Change::Ending { why })
    }

    /// Everything that had been started is gone.
    fn restart(&mut self) -> Result<Step, StepError> {
        let mut turn = Turn {
            now: self.clock,
            step: Step::default(),
        };
        self.record(&mut turn, Event::Restarted { at: self.clock })?;
        let started: Vec<(TaskId, Option<EndWhy>, u32)> = self
            .table
            .records()
            .into_iter()
            .filter_map(|record| {
                let why = match &record.phase {
                    Phase::Running { .. }
                    | Phase::Warned { .. }
                    | Phase::Pausing { .. }
                    | Phase::Paused { .. } => None,
                    Phase::Ending { why, .. } => Some(*why),
                    Phase::Waiting | Phase::Queued { .. } | Phase::Finished { .. } => return None,
                };
                Some((record.task.id, why, record.interruptions))
            })
            .collect();
        for (task, why, interruptions) in started {
            if let Some(why) = why {
                self.ended(&mut turn, task, why)?;
            } else if interruptions.saturating_add(1) >= MOST_CRASHES {
                let cause = Cause::Crashes;
                self.finish(&mut turn, task, Outcome::Failed { cause })?;
            } else {
                let why = RequeueWhy::Crash;
                self.change(&mut turn, task, Change::Requeued { why })?;
            }
        }
        self.schedule(&mut turn)?;
        Ok(turn.step)
    }

    fn change(&mut self, turn: &mut Turn, task: TaskId, change: Change) -> Result<(), StepError> {
        let at = turn.now;
        self.record(turn, Event::Changed { at, task, change })
    }

    /// The only way anything changes.
    fn record(&mut self, turn: &mut Turn, event: Event) -> Result<(), StepError> {
        self.table.apply(&event).map_err(StepError::Broken)?;
        turn.step.events.push(event);
        Ok(())
    }
}

/// One step while it is made.
#[derive(Debug)]
struct Turn {
    now: Timestamp,
    step: Step,
}

/// What a task's end means for those that wait for it; nothing for a success.
fn inherited(outcome: &Outcome, record: &Record) -> Option<Outcome> {
    let own = || Origin {
        task: record.task.id,
        name: record.task.name.clone(),
    };
    match outcome {
        Outcome::Succeeded => None,
        Outcome::Failed {
            cause: Cause::Dependency { origin },
        } => Some(Outcome::Failed {
            cause: Cause::Dependency {
                origin: origin.clone(),
            },
        }),
        Outcome::Failed {
            cause: Cause::Itself { .. } | Cause::Time | Cause::Memory | Cause::Crashes,
        } => Some(Outcome::Failed {
            cause: Cause::Dependency { origin: own() },
        }),
        Outcome::Cancelled { with } => Some(Outcome::Cancelled {
            with: with.clone().or_else(|| Some(own())),
        }),
    }
}
