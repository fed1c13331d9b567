//! The world around a scheduler: users, processes, memory, crashes, time.
//!
//! Everything that can happen waits in one agenda; the scheduler is one more
//! thing that wants to be woken. All choices come from one seed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use fluffy_base::id::TaskId;
use fluffy_base::{Span, Timestamp};
use fluffy_tasks::{
    Change, Effect, EndWhy, Event, Input, Kind, Limits, Memory, Outcome, Report, Snapshot, Step,
    Task, Word,
};
use fluffy_test_kit::Random;

use crate::fault::{Fault, Subject};
use crate::invariants::{Invariant, Moment};
use crate::model::{Fate, Model, Process};

/// A run that takes longer than this has lost something.
const LONGEST: Duration = Duration::from_secs(40_000);

/// Something that will happen by itself.
#[derive(Debug, Clone)]
enum Happening {
    /// The next tasks are submitted.
    Submit,
    /// Somebody cancels something.
    Cancel,
    /// Memory changes.
    Memory,
    /// The kernel is killed.
    Crash,
    /// A task's work is done, if it ran on undisturbed until then.
    Done { task: TaskId, stretch: u64 },
    /// The freezer answers.
    PauseAnswer { task: TaskId, stretch: u64 },
    /// The processes are gone, as ordered.
    Gone { task: TaskId, attempt: u32 },
    /// The kernel needs the memory of a task.
    Reclaim,
}

macro_rules! counts {
    ($($name:ident,)*) => {
        /// How often something happened.
        #[derive(Debug, Clone, Default)]
        pub(crate) struct Counts { $(pub(crate) $name: u64,)* }

        impl Counts {
            pub(crate) fn each(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }

            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counts! {
    steps, starts, warnings, spared, pauses, resumed, unpausable, ended_for_memory, reclaimed,
    ended_for_time, cancelled, aged, crashes, torn, succeeded, failed, failed_with, cancelled_with,
}

pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) limits: Limits,
    pub(crate) memory: Memory,
    pub(crate) models: BTreeMap<TaskId, Model>,
    pub(crate) subject: Subject,
    pub(crate) ledger: Vec<Event>,
    pub(crate) counts: Counts,
    is_faulty: bool,
    random: Random,
    submissions: VecDeque<Vec<(Task, Fate, Duration)>>,
    agenda: BTreeMap<(Timestamp, u64), Happening>,
    stretches: BTreeMap<TaskId, u64>,
    happened: u64,
}

impl World {
    pub(crate) fn new(seed: u64, tasks: u32, fault: Fault) -> Self {
        let limits = Limits {
            age: Span { millis: 5_000 },
            ..Limits::default()
        };
        let mut world = Self {
            now: Timestamp::from_micros(0),
            memory: Memory::default(),
            models: BTreeMap::new(),
            subject: Subject::new(limits.clone(), fault),
            limits,
            ledger: Vec::new(),
            counts: Counts::default(),
            is_faulty: fault != Fault::None,
            random: Random::new(seed),
            submissions: VecDeque::new(),
            agenda: BTreeMap::new(),
            stretches: BTreeMap::new(),
            happened: 0,
        };
        world.invent(tasks);
        let beginnings = [
            (Happening::Submit, 0),
            (Happening::Cancel, 7_000),
            (Happening::Memory, 3_000),
            (Happening::Crash, 40_000),
            (Happening::Reclaim, 9_000),
        ];
        for (happening, millis) in beginnings {
            world.plan(Duration::from_millis(millis), happening);
        }
        world
    }

    /// Lets everything happen until every task has ended.
    pub(crate) fn run(&mut self, invariants: &[(&'static str, Invariant)]) -> Result<(), String> {
        let last = self.now.after(LONGEST);
        while !self.is_over() && self.now < last {
            let happening = self.next_happening();
            if self.random.one_in(150) {
                self.torn_crash(happening, invariants)?;
            } else if let Some(input) = self.happen(happening, invariants)? {
                self.feed(input, invariants)?;
            }
        }
        self.look(invariants, &Moment::Rest)?;
        self.look(invariants, &Moment::End)
    }

    fn is_over(&self) -> bool {
        let ended = |model: &Model| !model.outcomes.is_empty();
        self.submissions.is_empty() && self.models.values().all(ended)
    }

    pub(crate) fn model(&self, task: TaskId) -> &Model {
        &self.models[&task]
    }

    fn model_mut(&mut self, task: TaskId) -> &mut Model {
        self.models.get_mut(&task).unwrap()
    }

    pub(crate) fn running(&self) -> u16 {
        let running = self.models.values().filter(|model| model.is_running());
        running.count().try_into().unwrap()
    }

    pub(crate) fn running_of(&self, template: Option<&Word>) -> u16 {
        let of = |model: &&Model| model.is_running() && model.task.template.as_ref() == template;
        self.models.values().filter(of).count().try_into().unwrap()
    }

    pub(crate) fn most_of(&self, template: Option<&Word>) -> u16 {
        let most = template.and_then(|template| self.limits.templates.get(template));
        most.copied().unwrap_or(self.limits.total)
    }

    /// Whether one more task of a template could run.
    pub(crate) fn has_room(&self, template: Option<&Word>) -> bool {
        self.running() < self.limits.total && self.running_of(template) < self.most_of(template)
    }

    pub(crate) fn depends_on(&self, task: TaskId, other: TaskId) -> bool {
        let after = &self.model(task).task.after;
        after.contains(&other) || after.iter().any(|between| self.depends_on(*between, other))
    }

    /// Makes up all tasks and in which groups they come.
    fn invent(&mut self, tasks: u32) {
        let mut number = 0;
        while number < tasks {
            let size = self.random.between(1, 9).min(u64::from(tasks - number)) as u32;
            let group = number..number + size;
            let batch = group.clone().map(|own| self.invent_task(own, &group));
            let batch: Vec<_> = batch.collect();
            self.submissions.push_back(batch);
            number += size;
        }
    }

    fn invent_task(&mut self, number: u32, group: &Range<u32>) -> (Task, Fate, Duration) {
        let random = &mut self.random;
        let id = |number: u64| TaskId::from_bits(u128::from(number) + 1);
        let templates = ["ai-provider", "code-executor", "policy-sandbox", "other"];
        let template = templates.get(random.between(0, 5) as usize);
        let mut after = Vec::new();
        // Some wait for tasks before them, some for the last of their group,
        // which waits only for other groups.
        let last = group.end - 1;
        let before = u64::from(if number == last { group.start } else { number });
        while before > 0 && random.one_in(3) && after.len() < 3 {
            after.push(id(random.between(before.saturating_sub(15), before)));
        }
        if number < last && random.one_in(8) {
            after.push(id(u64::from(last)));
        }
        let millis = random.between(1_000, 12_000);
        // Odd, so that no two things happen at exactly the same time.
        let percent = if random.one_in(12) { 130 } else { 90 };
        let micros = random.between(10, millis * 10 * percent) | 1;
        let task = Task {
            id: id(u64::from(number)),
            name: format!("task {number}"),
            kind: Kind::TestRun,
            template: template.map(|name| name.parse().unwrap()),
            priority: (random.between(1, 6) as u8).try_into().unwrap(),
            after,
            time: Span { millis },
        };
        let fails = random.one_in(15);
        let fate = if fails { Fate::Fails } else { Fate::Succeeds };
        (task, fate, Duration::from_micros(micros))
    }

    fn plan(&mut self, after: Duration, happening: Happening) {
        self.happened += 1;
        let at = self.now.after(after);
        self.agenda.insert((at, self.happened), happening);
    }

    fn plan_between(&mut self, low: u64, high: u64, happening: Happening) {
        let micros = self.random.between(low * 1_000, high * 1_000) | 1;
        self.plan(Duration::from_micros(micros), happening);
    }

    /// Moves to the next moment; nothing means that the scheduler is woken.
    fn next_happening(&mut self) -> Option<Happening> {
        let wake = self.subject.next_wake().map(|wake| {
            // A driver may be late.
            let late = if self.random.one_in(4) { 30_000 } else { 0 };
            wake.after(Duration::from_micros(late)).max(self.now)
        });
        let first = self.agenda.first_entry().unwrap();
        let (at, _) = *first.key();
        if let Some(wake) = wake
            && wake <= at
        {
            self.now = wake;
            return None;
        }
        self.now = at;
        Some(first.remove())
    }

    /// What the scheduler hears of a happening, if anything.
    fn happen(
        &mut self,
        happening: Option<Happening>,
        invariants: &[(&'static str, Invariant)],
    ) -> Result<Option<Input>, String> {
        let Some(happening) = happening else {
            return Ok(Some(Input::Wake));
        };
        Ok(match happening {
            Happening::Submit => self.submit(),
            Happening::Cancel => self.cancel(),
            Happening::Memory => {
                self.plan_between(500, 8_000, Happening::Memory);
                let mut percent = || match self.random.one_in(3) {
                    true => self.random.between(75, 100) as u8,
                    false => self.random.between(0, 75) as u8,
                };
                self.memory = Memory {
                    kernel: percent(),
                    sandboxes: percent(),
                };
                Some(Input::Memory(self.memory))
            }
            Happening::Crash => {
                self.plan_between(10_000, 150_000, Happening::Crash);
                // What is due by now is done: only what follows is lost.
                self.feed(Input::Wake, invariants)?;
                self.crash(invariants)?;
                None
            }
            Happening::Done { task, stretch } if self.stretches[&task] == stretch => {
                let report = match self.model(task).fate {
                    Fate::Succeeds => Report::Succeeded,
                    Fate::Fails => Report::Failed {
                        reason: "it was its fate".to_owned(),
                    },
                };
                Some(self.process_ends(task, report))
            }
            Happening::PauseAnswer { task, stretch } if self.stretches[&task] == stretch => {
                self.pause_answer(task)
            }
            Happening::Gone { task, attempt } => {
                let model = self.model(task);
                let is_there = model.process != Process::None && model.attempt == attempt;
                is_there.then(|| self.process_ends(task, Report::Ended))
            }
            Happening::Done { .. } | Happening::PauseAnswer { .. } => None,
            Happening::Reclaim => {
                self.plan_between(2_000, 30_000, Happening::Reclaim);
                let ids: Vec<TaskId> = self.models.keys().copied().collect();
                let running = ids.into_iter().find(|id| self.model(*id).is_running());
                self.counts.reclaimed += u64::from(running.is_some());
                running.map(|task| self.process_ends(task, Report::Reclaimed))
            }
        })
    }

    fn submit(&mut self) -> Option<Input> {
        let batch = self.submissions.pop_front()?;
        let tasks = batch.iter().map(|(task, _, _)| task.clone()).collect();
        for (task, fate, duration) in batch {
            let order = self.models.len() as u64;
            let id = task.id;
            self.stretches.insert(id, 0);
            self.models
                .insert(id, Model::new(task, order, fate, duration));
        }
        self.plan_between(1, 9_000, Happening::Submit);
        Some(Input::Submit { tasks })
    }

    fn cancel(&mut self) -> Option<Input> {
        self.plan_between(1_000, 20_000, Happening::Cancel);
        let open = |model: &&Model| model.outcomes.is_empty() && !model.cancelled;
        let open: Vec<TaskId> = self
            .models
            .values()
            .filter(open)
            .map(|model| model.task.id)
            .collect();
        let index = self.random.next() as usize % open.len().max(1);
        let task = *open.get(index)?;
        self.counts.cancelled += 1;
        self.model_mut(task).cancelled = true;
        Some(Input::Cancel { task })
    }

    /// The processes of a task are no more.
    fn process_ends(&mut self, task: TaskId, report: Report) -> Input {
        let model = self.models.get_mut(&task).unwrap();
        let for_memory = match (model.ending, &report) {
            (Some(EndWhy::Memory), report) => *report != Report::Succeeded,
            (None, report) => *report == Report::Reclaimed,
            (Some(EndWhy::Cancelled | EndWhy::Time), _) => false,
        };
        model.reclaimed += u32::from(for_memory);
        model.process = Process::None;
        (model.warned, model.pausing, model.ending) = (None, false, None);
        model.ran = Duration::ZERO;
        *self.stretches.get_mut(&task).unwrap() += 1;
        Input::Report {
            task,
            attempt: model.attempt,
            report,
        }
    }

    fn pause_answer(&mut self, task: TaskId) -> Option<Input> {
        let now = self.now;
        let unpausable = self.random.one_in(25);
        let model = self.models.get_mut(&task).unwrap();
        if !model.pausing {
            return None;
        }
        model.pausing = false;
        model.warned = None;
        let report = if unpausable {
            self.counts.unpausable += 1;
            model.unpausable = true;
            Report::Unpausable
        } else if model.ending.is_some() {
            // Frozen, but on its way out: its slot is given back then.
            Report::Paused
        } else {
            model.ran = model.ran_until(now);
            model.process = Process::Frozen { since: now };
            *self.stretches.get_mut(&task).unwrap() += 1;
            Report::Paused
        };
        Some(Input::Report {
            task,
            attempt: model.attempt,
            report,
        })
    }

    fn feed(
        &mut self,
        input: Input,
        invariants: &[(&'static str, Invariant)],
    ) -> Result<(), String> {
        self.counts.steps += 1;
        match self.subject.step(self.now, input.clone()) {
            Ok(step) => self.take(step, invariants),
            // A faulty scheduler may contradict the world; a real one may not.
            Err(_) if self.is_faulty => Ok(()),
            Err(error) => Err(format!("{input:?} was refused: {error}")),
        }
    }

    /// Records what happened, carries out what is ordered, and looks.
    fn take(&mut self, step: Step, invariants: &[(&'static str, Invariant)]) -> Result<(), String> {
        for event in step.events {
            self.hear(&event);
            self.ledger.push(event);
        }
        self.find_ready();
        for effect in step.effects {
            self.look(invariants, &Moment::Effect(&effect))?;
            self.carry_out(&effect);
        }
        self.look(invariants, &Moment::Step)
    }

    fn hear(&mut self, event: &Event) {
        match event {
            Event::Changed {
                task,
                change: Change::Finished { outcome },
                ..
            } => {
                let count = match outcome {
                    Outcome::Succeeded => &mut self.counts.succeeded,
                    Outcome::Failed {
                        cause: fluffy_tasks::Cause::Dependency { .. },
                    } => &mut self.counts.failed_with,
                    Outcome::Failed { .. } => &mut self.counts.failed,
                    Outcome::Cancelled { .. } => &mut self.counts.cancelled_with,
                };
                *count += 1;
                let model = self.model_mut(*task);
                model.queued = None;
                model.outcomes.push(outcome.clone());
            }
            Event::Aged { tasks, .. } => self.counts.aged += tasks.len() as u64,
            Event::Changed { .. } | Event::Submitted { .. } | Event::Restarted { .. } => {}
        }
    }

    /// Whoever has no processes, has not ended and waits for nothing, waits.
    fn find_ready(&mut self) {
        let succeeded = |task: &TaskId| self.model(*task).outcomes == [Outcome::Succeeded];
        let ready = self.models.values().filter(|model| {
            model.process == Process::None
                && model.outcomes.is_empty()
                && model.queued.is_none()
                && model.task.after.iter().all(succeeded)
        });
        let ready: Vec<TaskId> = ready.map(|model| model.task.id).collect();
        for task in ready {
            let now = self.now;
            self.model_mut(task).queued = Some(now);
        }
    }

    fn carry_out(&mut self, effect: &Effect) {
        let now = self.now;
        match effect {
            Effect::Start { task, .. } => {
                self.counts.starts += 1;
                let model = self.model_mut(task.id);
                model.attempt += 1;
                model.ran = Duration::ZERO;
                self.run_on(task.id);
            }
            Effect::Warn { task, .. } => {
                self.counts.warnings += 1;
                self.model_mut(*task).warned = Some(now);
            }
            Effect::Spare { task } => {
                self.counts.spared += 1;
                self.model_mut(*task).warned = None;
            }
            Effect::Pause { task } => {
                self.counts.pauses += 1;
                self.model_mut(*task).pausing = true;
                let stretch = self.stretches[task];
                let task = *task;
                self.plan_between(0, 300, Happening::PauseAnswer { task, stretch });
            }
            Effect::Resume { task } => {
                self.counts.resumed += 1;
                self.run_on(*task);
            }
            Effect::End { task, why } => {
                match why {
                    EndWhy::Memory => self.counts.ended_for_memory += 1,
                    EndWhy::Time => self.counts.ended_for_time += 1,
                    EndWhy::Cancelled => {}
                }
                let model = self.model_mut(*task);
                if let Process::Frozen { .. } = model.process {
                    let limits = self.limits.clone();
                    self.model_mut(*task).stop_waiting(now, &limits);
                }
                let model = self.model_mut(*task);
                model.ending = Some(*why);
                model.warned = None;
                let attempt = model.attempt;
                let task = *task;
                self.plan_between(0, 400, Happening::Gone { task, attempt });
            }
        }
    }

    fn run_on(&mut self, task: TaskId) {
        let (now, limits) = (self.now, self.limits.clone());
        let model = self.model_mut(task);
        model.stop_waiting(now, &limits);
        model.process = Process::Running { since: now };
        let left = model.duration.saturating_sub(model.ran);
        let stretch = self.stretches[&task] + 1;
        self.stretches.insert(task, stretch);
        self.plan(left, Happening::Done { task, stretch });
    }

    /// Kills the kernel; what it kept is read again, one way or the other.
    fn crash(&mut self, invariants: &[(&'static str, Invariant)]) -> Result<(), String> {
        self.counts.crashes += 1;
        self.look(invariants, &Moment::Rest)?;
        let replayed = Snapshot::default().after(&self.ledger);
        let snapshot = match replayed {
            Ok(replayed) if self.random.one_in(2) => replayed,
            _ => self.subject.scheduler().snapshot(),
        };
        self.restart(&snapshot, invariants)
    }

    /// Kills the kernel after it has decided and before it has recorded: the
    /// world is as if it had never heard, and what ran is gone.
    fn torn_crash(
        &mut self,
        happening: Option<Happening>,
        invariants: &[(&'static str, Invariant)],
    ) -> Result<(), String> {
        self.counts.torn += 1;
        self.feed(Input::Wake, invariants)?;
        let models = self.models.clone();
        let submissions = self.submissions.clone();
        if let Some(input) = self.happen(happening, invariants)? {
            let before = self.subject.scheduler().snapshot();
            let _ = self.subject.step(self.now, input);
            self.models = models;
            self.submissions = submissions;
            self.restart(&before, invariants)?;
        }
        Ok(())
    }

    fn restart(
        &mut self,
        snapshot: &Snapshot,
        invariants: &[(&'static str, Invariant)],
    ) -> Result<(), String> {
        let (now, limits) = (self.now, self.limits.clone());
        for (task, model) in &mut self.models {
            model.stop_waiting(now, &limits);
            if model.process != Process::None {
                match model.ending {
                    None => model.crashes += 1,
                    Some(EndWhy::Memory) => model.reclaimed += 1,
                    Some(EndWhy::Cancelled | EndWhy::Time) => {}
                }
            }
            model.process = Process::None;
            (model.warned, model.pausing, model.ending) = (None, false, None);
            model.ran = Duration::ZERO;
            *self.stretches.get_mut(task).unwrap() += 1;
        }
        self.memory = Memory::default();
        let step = self.subject.crash(now, snapshot);
        self.take(step, invariants)
    }

    fn look(
        &self,
        invariants: &[(&'static str, Invariant)],
        moment: &Moment<'_>,
    ) -> Result<(), String> {
        for (name, invariant) in invariants {
            invariant(self, moment).map_err(|why| format!("{name} at {}: {why}", self.now))?;
        }
        Ok(())
    }
}
