//! Whose turn it is: drives the scheduler of `tasks` for all sessions.
//!
//! Work waits here until what it comes after has succeeded, its kind of sandbox
//! has a slot and the kernel has memory left; it gives way to what is more
//! urgent. Nothing of it is stored: a session is its facts, and whoever goes on
//! with one asks for its slot again. Runs nothing itself. Next: `freezer`.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::id::TaskId;
use fluffy_base::{Span, Timestamp};
use fluffy_contract::BoxFuture;
use fluffy_tasks::{
    Cause, Change, Effect, Event, Input, Kind, Limits, LimitsError, Memory, Outcome, Priority,
    Report, Scheduler, StepError, Task, Word,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// How often memory is looked at while somebody works or waits.
const LOOK: Duration = Duration::from_millis(500);

/// What the kernel may use, as its template says.
pub const KERNEL_MEMORY: u64 = 512 << 20;

/// From here on what can be done again is ended, in percent of that.
pub const KERNEL_FULL: u8 = 90;

/// How full memory is, looked at when it matters.
pub type LookAtMemory = Arc<dyn Fn() -> Memory + Send + Sync>;

/// Gives memory back; asked again as long as there is too little.
pub type GiveBack = Arc<dyn Fn(Shortage) + Send + Sync>;

/// How short the kernel's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// Nothing starts any more, and what only waits is ended.
    Caches,
    /// What can be done again is ended too.
    Commands,
}

/// What the slots know of the kernel's memory, and do about it.
#[derive(Clone)]
pub struct Store {
    /// How full it is.
    pub look: LookAtMemory,
    /// Gives it back.
    pub give_back: GiveBack,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

/// The slots of a kernel; clones share them.
#[derive(Debug, Clone)]
pub struct Slots {
    inbox: mpsc::UnboundedSender<Message>,
    store: Store,
}

/// What a session wants to do next.
#[derive(Debug, Clone)]
pub struct Work {
    /// Which; what comes after it names it.
    pub id: TaskId,
    /// What people call it.
    pub name: String,
    /// What it does.
    pub kind: Kind,
    /// The template of its sandbox.
    pub template: Option<&'static str>,
    /// How urgent it is.
    pub priority: Priority,
    /// What must have succeeded before.
    pub after: Option<TaskId>,
    /// Beyond this it is ended; pauses do not count.
    pub time: Span,
    /// How it is stopped where it is; nothing if it cannot be.
    pub freeze: Option<Arc<dyn Freeze>>,
}

impl Work {
    /// Whether nothing is lost when it is ended and done again.
    fn can_be_repeated(&self) -> bool {
        match self.kind {
            Kind::TestRun | Kind::Validate | Kind::Plugin(_) => true,
            // An answer is paid for, and the others write to the project.
            Kind::AiGenerate | Kind::Review | Kind::Commit => false,
        }
    }
}

/// Work that can be stopped where it is.
pub trait Freeze: fmt::Debug + Send + Sync {
    /// It will be paused after this long, unless its slot is spared.
    fn warn(&self, after: Duration);

    /// The warning is void.
    fn spare(&self);

    /// Stops it where it is; says whether that was possible.
    fn pause(&self) -> BoxFuture<'_, bool>;

    /// Lets it go on.
    fn resume(&self) -> BoxFuture<'_, ()>;
}

/// Why work was not done.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// Too much waits already.
    #[error("too much work waits")]
    Refused(#[source] StepError),
    /// What it comes after did not succeed.
    #[error("`{cause}` did not succeed, which has to come first")]
    Behind {
        /// What that is called.
        cause: String,
    },
    /// It took longer than it may.
    #[error("its time was over")]
    Time,
    /// It was ended for memory, and again when it was done again.
    #[error("it was ended twice because memory was needed")]
    Memory,
    /// It was called off.
    #[error("it was called off")]
    Cancelled,
    /// The scheduler has ended.
    #[error("the scheduler has ended")]
    Gone,
}

impl SlotError {
    /// Why work ends without having been done; nothing if it was.
    fn of(outcome: &Outcome) -> Option<Self> {
        match outcome {
            Outcome::Succeeded => None,
            Outcome::Failed { cause } => Some(match cause {
                Cause::Dependency { origin } => Self::Behind {
                    cause: origin.name.clone(),
                },
                Cause::Time => Self::Time,
                Cause::Memory => Self::Memory,
                Cause::Itself { .. } | Cause::Crashes => Self::Cancelled,
            }),
            Outcome::Cancelled { .. } => Some(Self::Cancelled),
        }
    }
}

enum Message {
    Want {
        work: Box<Work>,
        ready: mpsc::UnboundedSender<Result<Granted, SlotError>>,
    },
    Told {
        task: TaskId,
        attempt: u32,
        report: Report,
    },
    NotWanted {
        task: TaskId,
    },
    Begun,
    Rests,
}

/// A slot that was given.
#[derive(Debug)]
struct Granted {
    attempt: u32,
    /// Ready when the work has to end, with what is then reported.
    revoked: oneshot::Receiver<Report>,
}

/// Tells the scheduler when work ends, however it does.
struct Held {
    inbox: mpsc::UnboundedSender<Message>,
    task: TaskId,
    /// Nothing as long as it waits.
    attempt: Option<u32>,
    report: Report,
}

impl Held {
    fn has(&mut self, attempt: u32) {
        self.attempt = Some(attempt);
        // Whoever stops it has not done it.
        self.report = Report::Failed {
            reason: "it was stopped".to_owned(),
        };
    }

    /// Tells how this attempt ended; there may be another.
    fn tell(&mut self) {
        let task = self.task;
        let report = std::mem::replace(&mut self.report, Report::Ended);
        let message = match self.attempt.take() {
            Some(attempt) => Message::Told {
                task,
                attempt,
                report,
            },
            None => Message::NotWanted { task },
        };
        // Without a scheduler there is nobody to tell.
        let _ = self.inbox.send(message);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.tell();
    }
}

/// A session at work: as long as there is one, memory is looked at.
#[derive(Debug)]
pub struct AtWork {
    inbox: mpsc::UnboundedSender<Message>,
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let _ = self.inbox.send(Message::Rests);
    }
}

impl Slots {
    /// Slots within these limits.
    ///
    /// Must be called within a tokio runtime with time.
    ///
    /// # Errors
    /// The limits make no sense.
    pub fn start(limits: Limits, store: Store) -> Result<Self, LimitsError> {
        let (sender, inbox) = mpsc::unbounded_channel();
        let yard = Yard {
            scheduler: Scheduler::new(limits)?,
            store: store.clone(),
            began: Instant::now(),
            wanted: BTreeMap::new(),
            at_work: 0,
            inbox: sender.downgrade(),
        };
        tokio::spawn(yard.run(inbox));
        Ok(Self {
            inbox: sender,
            store,
        })
    }

    /// How full memory is now.
    #[must_use]
    pub fn memory(&self) -> Memory {
        (self.store.look)()
    }

    /// Says that a session works, as long as this is kept.
    #[must_use]
    pub fn at_work(&self) -> AtWork {
        let _ = self.inbox.send(Message::Begun);
        AtWork {
            inbox: self.inbox.clone(),
        }
    }

    /// Waits for a slot and does the work in it; dropping this gives both up.
    /// Work that had to end for memory is done again from its beginning, once.
    ///
    /// # Errors
    /// There is no slot, or the work had to end.
    pub async fn run<T, E: fmt::Display, F>(
        &self,
        work: Work,
        mut doing: impl FnMut() -> F,
    ) -> Result<Result<T, E>, SlotError>
    where
        F: Future<Output = Result<T, E>>,
    {
        let task = work.id;
        let (ready, mut grants) = mpsc::unbounded_channel();
        let work = Box::new(work);
        let want = Message::Want { work, ready };
        self.inbox.send(want).map_err(|_| SlotError::Gone)?;
        let mut held = Held {
            inbox: self.inbox.clone(),
            task,
            attempt: None,
            report: Report::Ended,
        };
        loop {
            let granted = grants.recv().await.unwrap_or(Err(SlotError::Gone))?;
            let Granted {
                attempt,
                mut revoked,
            } = granted;
            held.has(attempt);
            tokio::select! {
                done = doing() => {
                    held.report = match &done {
                        Ok(_) => Report::Succeeded,
                        Err(error) => Report::Failed { reason: error.to_string() },
                    };
                    return Ok(done);
                }
                Ok(report) = &mut revoked => {
                    held.report = report;
                    held.tell();
                }
            }
        }
    }
}

/// How full the kernel's own memory is, and the machine's.
#[must_use]
pub fn own_memory() -> Memory {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let kib = |text: &str, name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse().ok()
    };
    let used = kib(&read("/proc/self/status"), "VmRSS:").unwrap_or(0);
    let machine = read("/proc/meminfo");
    // Sandboxes can have what the machine has.
    let whole = kib(&machine, "MemTotal:").unwrap_or(0);
    let free = kib(&machine, "MemAvailable:").unwrap_or(whole);
    Memory {
        kernel: percent(used, KERNEL_MEMORY / 1_024),
        sandboxes: percent(whole.saturating_sub(free), whole),
    }
}

fn percent(part: u64, whole: u64) -> u8 {
    let percent = part.saturating_mul(100).checked_div(whole).unwrap_or(0);
    u8::try_from(percent).unwrap_or(u8::MAX)
}

/// Work that waits or runs.
struct Wanted {
    ready: mpsc::UnboundedSender<Result<Granted, SlotError>>,
    freeze: Option<Arc<dyn Freeze>>,
    can_be_repeated: bool,
    attempt: u32,
    /// Nothing as long as it waits, and once it has been told to end.
    revoke: Option<oneshot::Sender<Report>>,
}

impl Wanted {
    /// Lets it end; whoever does the work reports that it has.
    fn revoke(&mut self, report: Report) {
        if let Some(revoke) = self.revoke.take() {
            let _ = revoke.send(report);
        }
    }
}

/// The one task that owns the scheduler.
struct Yard {
    scheduler: Scheduler,
    store: Store,
    began: Instant,
    wanted: BTreeMap<TaskId, Wanted>,
    /// How many sessions work.
    at_work: usize,
    /// For what is done meanwhile; keeps nobody alive.
    inbox: mpsc::WeakUnboundedSender<Message>,
}

impl Yard {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Message>) {
        loop {
            let wake = self.scheduler.next_wake().map(|wake| self.instant(wake));
            let is_busy = !self.wanted.is_empty() || self.at_work > 0;
            tokio::select! {
                message = inbox.recv() => match message {
                    Some(message) => self.hear(message),
                    None => return,
                },
                () = until(wake) => self.take(Input::Wake),
                () = tokio::time::sleep(LOOK), if is_busy => self.look(),
            }
        }
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::Want { work, ready } => self.want(*work, ready),
            Message::Told {
                task,
                attempt,
                report,
            } => self.told(task, attempt, report),
            Message::NotWanted { task } => {
                self.wanted.remove(&task);
                self.take(Input::Cancel { task });
            }
            Message::Begun => self.at_work += 1,
            Message::Rests => self.at_work = self.at_work.saturating_sub(1),
        }
    }

    fn want(&mut self, work: Work, ready: mpsc::UnboundedSender<Result<Granted, SlotError>>) {
        self.look();
        let can_be_repeated = work.can_be_repeated();
        // What is no longer known ended long ago, and its session knows how.
        let known = |task: &TaskId| self.scheduler.status(*task).is_some();
        let task = Task {
            id: work.id,
            name: work.name,
            kind: work.kind,
            template: work.template.and_then(|name| name.parse::<Word>().ok()),
            priority: work.priority,
            after: work.after.into_iter().filter(known).collect(),
            time: work.time,
        };
        let wanted = Wanted {
            ready,
            freeze: work.freeze,
            can_be_repeated,
            attempt: 0,
            revoke: None,
        };
        let id = task.id;
        self.wanted.insert(id, wanted);
        let tasks = vec![task];
        if let Err(error) = self.step(Input::Submit { tasks })
            && let Some(wanted) = self.wanted.remove(&id)
        {
            // Whoever asked may be gone.
            let _ = wanted.ready.send(Err(SlotError::Refused(error)));
        }
    }

    fn told(&mut self, task: TaskId, attempt: u32, report: Report) {
        let is_paused = report == Report::Paused;
        let taken = self.step(Input::Report {
            task,
            attempt,
            report,
        });
        // It was frozen too late: somebody else has decided meanwhile.
        if taken.is_err() && is_paused {
            self.resume(task);
        }
    }

    /// Looks at memory, and gives some back when there is too little.
    fn look(&mut self) {
        let memory = (self.store.look)();
        self.take(Input::Memory(memory));
        if memory.kernel >= Memory::KERNEL_STOP {
            (self.store.give_back)(Shortage::Caches);
        }
        if memory.kernel >= KERNEL_FULL {
            (self.store.give_back)(Shortage::Commands);
            let repeatable = self.wanted.values_mut();
            for wanted in repeatable.filter(|wanted| wanted.can_be_repeated) {
                wanted.revoke(Report::Reclaimed);
            }
        }
    }

    /// An input whose refusal means that it has come too late.
    fn take(&mut self, input: Input) {
        let _ = self.step(input);
    }

    fn step(&mut self, input: Input) -> Result<(), StepError> {
        let step = self.scheduler.step(self.now(), input)?;
        for event in &step.events {
            self.tell_end(event);
        }
        for effect in step.effects {
            self.carry_out(effect);
        }
        Ok(())
    }

    /// Whoever waits for work that will never be done hears why.
    fn tell_end(&mut self, event: &Event) {
        let Event::Changed {
            task,
            change: Change::Finished { outcome },
            ..
        } = event
        else {
            return;
        };
        let wanted = self.wanted.remove(task);
        if let (Some(wanted), Some(error)) = (wanted, SlotError::of(outcome)) {
            let _ = wanted.ready.send(Err(error));
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Start { task, attempt } => self.start(task.id, attempt),
            Effect::Warn { task, until } => {
                let after = self
                    .instant(until)
                    .saturating_duration_since(Instant::now());
                if let Some(freeze) = self.freeze(task) {
                    freeze.warn(after);
                }
            }
            Effect::Spare { task } => {
                if let Some(freeze) = self.freeze(task) {
                    freeze.spare();
                }
            }
            Effect::Pause { task } => self.pause(task),
            Effect::Resume { task } => self.resume(task),
            Effect::End { task, .. } => {
                if let Some(wanted) = self.wanted.get_mut(&task) {
                    wanted.revoke(Report::Ended);
                } else {
                    // Whoever did it is gone already.
                    self.gone(task, Report::Ended);
                }
            }
        }
    }

    fn start(&mut self, task: TaskId, attempt: u32) {
        let (revoke, revoked) = oneshot::channel();
        let granted = Granted { attempt, revoked };
        let is_taken = self.wanted.get_mut(&task).is_some_and(|wanted| {
            wanted.attempt = attempt;
            wanted.revoke = Some(revoke);
            wanted.ready.send(Ok(granted)).is_ok()
        });
        if attempt > 1 {
            // It may have been ended while it was frozen.
            self.resume(task);
        }
        if !is_taken {
            self.wanted.remove(&task);
            let reason = "nobody waits for it".to_owned();
            self.gone(task, Report::Failed { reason });
        }
    }

    /// Reports for work that nobody does any more.
    fn gone(&mut self, task: TaskId, report: Report) {
        let attempt = self.scheduler.status(task).map(|status| status.attempt);
        if let Some(attempt) = attempt {
            self.take(Input::Report {
                task,
                attempt,
                report,
            });
        }
    }

    fn freeze(&self, task: TaskId) -> Option<Arc<dyn Freeze>> {
        self.wanted.get(&task)?.freeze.clone()
    }

    /// Has it frozen meanwhile; what cannot be runs on.
    fn pause(&mut self, task: TaskId) {
        let attempt = self.wanted.get(&task).map_or(0, |wanted| wanted.attempt);
        let Some(freeze) = self.freeze(task) else {
            self.take(Input::Report {
                task,
                attempt,
                report: Report::Unpausable,
            });
            return;
        };
        let inbox = self.inbox.clone();
        tokio::spawn(async move {
            let report = match freeze.pause().await {
                true => Report::Paused,
                false => Report::Unpausable,
            };
            let told = Message::Told {
                task,
                attempt,
                report,
            };
            match inbox.upgrade() {
                Some(inbox) => drop(inbox.send(told)),
                None => freeze.resume().await,
            }
        });
    }

    fn resume(&self, task: TaskId) {
        if let Some(freeze) = self.freeze(task) {
            tokio::spawn(async move { freeze.resume().await });
        }
    }

    /// Counted from one start, with a clock that cannot be set.
    fn now(&self) -> Timestamp {
        let micros = self.began.elapsed().as_micros();
        Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }

    fn instant(&self, moment: Timestamp) -> Instant {
        let micros = u64::try_from(moment.as_micros()).unwrap_or(0);
        self.began + Duration::from_micros(micros)
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
