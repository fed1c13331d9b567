//! The scheduler as the world sees it, with a mistake planted in between.
//!
//! A fault changes what the scheduler hears, what is heard of it, or what it
//! keeps; the scheduler itself is always the real one.

use fluffy_base::{Span, Timestamp};
use fluffy_tasks::{
    Cause, Change, Effect, Event, Input, Limits, Outcome, Report, Scheduler, Snapshot, Step,
    StepError,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// None: the scheduler as it is.
    None,
    /// It believes that there is one slot more, everywhere.
    MoreSlots,
    /// It believes that there is one slot less.
    FewerSlots,
    /// It forgets what tasks wait for.
    NoDependencies,
    /// It takes the tasks of a submission in the wrong order.
    ReversedSubmissions,
    /// It believes that every second task is one level lower.
    OddOnesDemoted,
    /// It does not hear that tasks are gone.
    LostEnds,
    /// It takes failures for successes.
    HiddenFailures,
    /// It starts tasks twice.
    DoubledStarts,
    /// It forgets a waiting task in a crash.
    LosesInCrash,
    /// It forgets in a crash what it ended for memory.
    ForgetsReclaimed,
    /// It blames the task that suffered.
    WrongCulprit,
    /// It does not hear how full memory is.
    MemoryUntold,
    /// It believes that tasks have twice their time.
    MoreTime,
    /// It warns for a tenth of the time.
    ShortWarning,
    /// It lets tasks age at half the speed.
    SlowAgeing,
    /// It does not say when to wake it.
    NoWake,
    /// Not everything it did is recorded.
    LostEvents,
}

pub(crate) struct Subject {
    fault: Fault,
    limits: Limits,
    scheduler: Scheduler,
    steps: u64,
}

impl Subject {
    pub(crate) fn new(mut limits: Limits, fault: Fault) -> Self {
        match fault {
            Fault::MoreSlots => {
                limits.total += 1;
                limits.templates.values_mut().for_each(|most| *most += 1);
            }
            Fault::FewerSlots => limits.total -= 1,
            Fault::ShortWarning => limits.warning = Span { millis: 100 },
            Fault::SlowAgeing => limits.age.millis *= 2,
            _ => {}
        }
        Self {
            scheduler: Scheduler::new(limits.clone()).unwrap(),
            limits,
            fault,
            steps: 0,
        }
    }

    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    pub(crate) fn next_wake(&self) -> Option<Timestamp> {
        match self.fault {
            Fault::NoWake => None,
            _ => self.scheduler.next_wake(),
        }
    }

    pub(crate) fn step(&mut self, now: Timestamp, input: Input) -> Result<Step, StepError> {
        self.steps += 1;
        let mut input = input;
        match (&mut input, self.fault) {
            (Input::Submit { tasks }, Fault::NoDependencies) => {
                tasks.iter_mut().for_each(|task| task.after.clear());
            }
            (Input::Submit { tasks }, Fault::ReversedSubmissions) => tasks.reverse(),
            (Input::Submit { tasks }, Fault::OddOnesDemoted) => {
                for task in tasks.iter_mut().filter(|task| task.id.to_bits() % 2 == 1) {
                    let lower = (task.priority.number() + 1).min(5);
                    task.priority = lower.try_into().unwrap();
                }
            }
            (Input::Submit { tasks }, Fault::MoreTime) => {
                tasks.iter_mut().for_each(|task| task.time.millis *= 2);
            }
            (Input::Report { report, .. }, Fault::LostEnds) if *report == Report::Ended => {
                input = Input::Wake;
            }
            (Input::Report { report, .. }, Fault::HiddenFailures)
                if matches!(report, Report::Failed { .. }) =>
            {
                *report = Report::Succeeded;
            }
            (Input::Memory(_), Fault::MemoryUntold) => input = Input::Wake,
            _ => {}
        }
        let step = self.scheduler.step(now, input)?;
        Ok(self.after(step))
    }

    /// Goes on from what was kept, as after a crash.
    pub(crate) fn crash(&mut self, now: Timestamp, snapshot: &Snapshot) -> Step {
        let mut json = serde_json::to_value(snapshot).unwrap();
        let tasks = json["tasks"].as_array_mut().unwrap();
        match self.fault {
            Fault::LosesInCrash => {
                // One that nobody waits for: the snapshot itself shows others.
                let awaited = |id: &serde_json::Value| {
                    let after =
                        |task: &serde_json::Value| task["task"]["after"].as_array().cloned();
                    let mut all = tasks.iter().filter_map(after).flatten();
                    all.any(|other| other == *id)
                };
                let lost = tasks.iter().position(|task| {
                    task["phase"]["phase"] == "queued" && !awaited(&task["task"]["id"])
                });
                lost.map(|index| tasks.remove(index));
            }
            Fault::ForgetsReclaimed => {
                tasks
                    .iter_mut()
                    .for_each(|task| task["reclaimed"] = 0.into());
            }
            _ => {}
        }
        let snapshot: Snapshot = serde_json::from_value(json).unwrap();
        let limits = self.limits.clone();
        let (scheduler, step) = Scheduler::resume(limits, &snapshot, now).unwrap();
        self.scheduler = scheduler;
        self.after(step)
    }

    fn after(&self, mut step: Step) -> Step {
        match self.fault {
            Fault::DoubledStarts => {
                let starts = |effect: &&Effect| matches!(effect, Effect::Start { .. });
                let again: Vec<_> = step.effects.iter().filter(starts).cloned().collect();
                step.effects.extend(again);
            }
            Fault::WrongCulprit => step.events.iter_mut().for_each(blame_the_victim),
            Fault::LostEvents if self.steps.is_multiple_of(50) => {
                step.events.pop();
            }
            _ => {}
        }
        step
    }
}

fn blame_the_victim(event: &mut Event) {
    if let Event::Changed {
        task,
        change:
            Change::Finished {
                outcome:
                    Outcome::Failed {
                        cause: Cause::Dependency { origin },
                    },
            },
        ..
    } = event
    {
        origin.task = *task;
    }
}
