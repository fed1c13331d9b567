//! A scheduler with a clock, spoken to in short words.
//!
//! Tasks are numbers; effects come back as text such as `start 3#1`.

use std::time::Duration;

use fluffy_base::id::TaskId;
use fluffy_base::{Span, Timestamp};
use fluffy_tasks::{
    Change, Effect, Event, Input, Kind, Limits, Memory, Outcome, Priority, Report, Scheduler, Step,
    StepError, Task,
};

pub(crate) fn id(number: u32) -> TaskId {
    TaskId::from_bits(u128::from(number))
}

pub(crate) fn number(task: TaskId) -> u128 {
    task.to_bits()
}

/// A task of ten seconds that needs no sandbox.
pub(crate) fn task(number: u32, priority: u8) -> Task {
    Task {
        id: id(number),
        name: format!("task {number}"),
        kind: Kind::TestRun,
        template: None,
        priority: Priority::try_from(priority).unwrap(),
        after: Vec::new(),
        time: Span { millis: 10_000 },
    }
}

pub(crate) fn after(number: u32, dependencies: &[u32]) -> Task {
    Task {
        after: dependencies.iter().map(|number| id(*number)).collect(),
        ..task(number, 3)
    }
}

pub(crate) fn in_template(number: u32, priority: u8, template: &str) -> Task {
    Task {
        template: Some(template.parse().unwrap()),
        ..task(number, priority)
    }
}

/// Limits for tests in which one thing happens at a time.
pub(crate) fn one_slot() -> Limits {
    Limits {
        total: 1,
        ..Limits::default()
    }
}

pub(crate) struct Desk {
    pub(crate) scheduler: Scheduler,
    pub(crate) now: Timestamp,
    pub(crate) events: Vec<Event>,
}

impl Desk {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            scheduler: Scheduler::new(limits).unwrap(),
            now: Timestamp::from_micros(0),
            events: Vec::new(),
        }
    }

    pub(crate) fn try_step(&mut self, input: Input) -> Result<String, StepError> {
        let step = self.scheduler.step(self.now, input)?;
        Ok(self.take(step))
    }

    pub(crate) fn take(&mut self, step: Step) -> String {
        self.events.extend(step.events);
        let shown: Vec<String> = step.effects.iter().map(show).collect();
        shown.join(", ")
    }

    pub(crate) fn step(&mut self, input: Input) -> String {
        self.try_step(input).unwrap()
    }

    pub(crate) fn submit(&mut self, tasks: &[Task]) -> String {
        let tasks = tasks.to_vec();
        self.step(Input::Submit { tasks })
    }

    pub(crate) fn cancel(&mut self, number: u32) -> String {
        self.step(Input::Cancel { task: id(number) })
    }

    pub(crate) fn try_report(&mut self, number: u32, report: Report) -> Result<String, StepError> {
        let task = id(number);
        let attempt = self.scheduler.status(task).unwrap().attempt;
        self.try_step(Input::Report {
            task,
            attempt,
            report,
        })
    }

    pub(crate) fn report(&mut self, number: u32, report: Report) -> String {
        self.try_report(number, report).unwrap()
    }

    pub(crate) fn succeed(&mut self, number: u32) -> String {
        self.report(number, Report::Succeeded)
    }

    pub(crate) fn fail(&mut self, number: u32) -> String {
        let reason = "it broke".to_owned();
        self.report(number, Report::Failed { reason })
    }

    pub(crate) fn memory(&mut self, kernel: u8, sandboxes: u8) -> String {
        self.step(Input::Memory(Memory { kernel, sandboxes }))
    }

    /// Lets time pass and wakes the scheduler then.
    pub(crate) fn wake_after(&mut self, millis: u64) -> String {
        self.now = self.now.after(Duration::from_millis(millis));
        self.step(Input::Wake)
    }

    /// In how many milliseconds the scheduler wants to be woken.
    pub(crate) fn wakes_in(&self) -> Option<u128> {
        let wake = self.scheduler.next_wake()?;
        Some(wake.since(self.now).as_millis())
    }

    pub(crate) fn phase(&self, number: u32) -> &'static str {
        self.scheduler.status(id(number)).unwrap().phase.name()
    }

    pub(crate) fn level(&self, number: u32) -> u8 {
        self.scheduler.status(id(number)).unwrap().level.number()
    }

    /// How a task ended, from the events.
    pub(crate) fn outcome(&self, number: u32) -> Option<Outcome> {
        self.events.iter().find_map(|event| match event {
            Event::Changed {
                task,
                change: Change::Finished { outcome },
                ..
            } if *task == id(number) => Some(outcome.clone()),
            _ => None,
        })
    }
}

fn show(effect: &Effect) -> String {
    match effect {
        Effect::Start { task, attempt } => format!("start {}#{attempt}", number(task.id)),
        Effect::Warn { task, .. } => format!("warn {}", number(*task)),
        Effect::Spare { task } => format!("spare {}", number(*task)),
        Effect::Pause { task } => format!("pause {}", number(*task)),
        Effect::Resume { task } => format!("resume {}", number(*task)),
        Effect::End { task, why } => format!("end {} for {why:?}", number(*task)),
    }
}
