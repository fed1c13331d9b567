//! Whose turn it is: drives the scheduler of `tasks` for all sessions.
//!
//! Work waits here until its kind of sandbox has a slot and the kernel has
//! memory left. Nothing of it is stored: a session is its facts, and whoever
//! goes on with one asks for its slot again. Runs nothing itself.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::id::TaskId;
use fluffy_base::{Span, Timestamp};
use fluffy_tasks::{
    Effect, Input, Kind, Limits, LimitsError, Memory, Priority, Report, Scheduler, StepError, Task,
    Word,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// How often memory is looked at while somebody waits.
const LOOK: Duration = Duration::from_millis(500);

/// What the kernel may use, as its template says.
pub const KERNEL_MEMORY: u64 = 512 << 20;

/// Beyond this work is ended; far more than any budget of a session.
const LONGEST: Span = Span {
    millis: 24 * 60 * 60 * 1_000,
};

/// How full memory is, looked at when it matters.
pub type LookAtMemory = Arc<dyn Fn() -> Memory + Send + Sync>;

/// The slots of a kernel; clones share them.
#[derive(Debug, Clone)]
pub struct Slots {
    inbox: mpsc::UnboundedSender<Message>,
}

/// What a session wants to do next.
#[derive(Debug, Clone)]
pub struct Work {
    /// What people call it.
    pub name: String,
    /// What it does.
    pub kind: Kind,
    /// The template of its sandbox.
    pub template: Option<&'static str>,
    /// How urgent it is.
    pub priority: Priority,
}

/// Why work was not done.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// Too much waits already.
    #[error("too much work waits")]
    Refused(#[source] StepError),
    /// It was told to end: its time was over, or memory was needed.
    #[error("it had to end: its time was over, or memory was needed")]
    Revoked,
    /// The scheduler has ended.
    #[error("the scheduler has ended")]
    Gone,
}

enum Message {
    Want {
        task: Task,
        ready: oneshot::Sender<Result<Granted, StepError>>,
    },
    Over {
        task: TaskId,
        attempt: u32,
        report: Report,
    },
    NotWanted {
        task: TaskId,
    },
}

/// A slot that was given.
#[derive(Debug)]
struct Granted {
    attempt: u32,
    /// Ready when the work has to end.
    revoked: oneshot::Receiver<()>,
}

/// Tells the scheduler when work ends, however it does.
struct Held {
    inbox: mpsc::UnboundedSender<Message>,
    task: TaskId,
    /// Nothing as long as it waits.
    attempt: Option<u32>,
    report: Report,
}

impl Drop for Held {
    fn drop(&mut self) {
        let task = self.task;
        let report = std::mem::replace(&mut self.report, Report::Ended);
        let message = match self.attempt {
            Some(attempt) => Message::Over {
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

impl Slots {
    /// Slots within these limits.
    ///
    /// Must be called within a tokio runtime with time.
    ///
    /// # Errors
    /// The limits make no sense.
    pub fn start(limits: Limits, memory: LookAtMemory) -> Result<Self, LimitsError> {
        let (sender, inbox) = mpsc::unbounded_channel();
        let yard = Yard {
            scheduler: Scheduler::new(limits)?,
            memory,
            began: Instant::now(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
        };
        tokio::spawn(yard.run(inbox));
        Ok(Self { inbox: sender })
    }

    /// Waits for a slot and does the work in it; dropping this gives both up.
    ///
    /// # Errors
    /// There is no slot, or the work had to end.
    pub async fn run<T>(&self, work: Work, doing: impl Future<Output = T>) -> Result<T, SlotError> {
        let id = TaskId::generate();
        let template = work.template.and_then(|name| name.parse::<Word>().ok());
        let task = Task {
            id,
            name: work.name,
            kind: work.kind,
            template,
            priority: work.priority,
            after: Vec::new(),
            time: LONGEST,
        };
        let (ready, granted) = oneshot::channel();
        let want = Message::Want { task, ready };
        self.inbox.send(want).map_err(|_| SlotError::Gone)?;
        let mut held = Held {
            inbox: self.inbox.clone(),
            task: id,
            attempt: None,
            report: Report::Ended,
        };
        let granted = granted.await.map_err(|_| SlotError::Gone)?;
        let Granted {
            attempt,
            mut revoked,
        } = granted.map_err(SlotError::Refused)?;
        held.attempt = Some(attempt);
        // Whoever stops it has not done it.
        held.report = Report::Failed {
            reason: "it was stopped".to_owned(),
        };
        tokio::select! {
            done = doing => {
                held.report = Report::Succeeded;
                Ok(done)
            }
            Ok(()) = &mut revoked => {
                held.report = Report::Ended;
                Err(SlotError::Revoked)
            }
        }
    }
}

/// How full the kernel's own memory is.
#[must_use]
pub fn own_memory() -> Memory {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let used = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    let percent = used.unwrap_or(0_u64).saturating_mul(1_024 * 100) / KERNEL_MEMORY;
    Memory {
        kernel: u8::try_from(percent).unwrap_or(u8::MAX),
        sandboxes: 0,
    }
}

/// The one task that owns the scheduler.
struct Yard {
    scheduler: Scheduler,
    memory: LookAtMemory,
    began: Instant,
    waiting: BTreeMap<TaskId, oneshot::Sender<Result<Granted, StepError>>>,
    running: BTreeMap<TaskId, (u32, Option<oneshot::Sender<()>>)>,
}

impl Yard {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Message>) {
        loop {
            let wake = self.scheduler.next_wake().map(|wake| self.instant(wake));
            let someone_waits = !self.waiting.is_empty();
            tokio::select! {
                message = inbox.recv() => match message {
                    Some(message) => self.hear(message),
                    None => return,
                },
                () = until(wake) => self.take(Input::Wake),
                () = tokio::time::sleep(LOOK), if someone_waits => self.look(),
            }
        }
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::Want { task, ready } => {
                self.look();
                let id = task.id;
                self.waiting.insert(id, ready);
                let tasks = vec![task];
                if let Err(error) = self.step(Input::Submit { tasks })
                    && let Some(ready) = self.waiting.remove(&id)
                {
                    // Whoever asked may be gone.
                    let _ = ready.send(Err(error));
                }
            }
            Message::Over {
                task,
                attempt,
                report,
            } => {
                self.running.remove(&task);
                self.take(Input::Report {
                    task,
                    attempt,
                    report,
                });
            }
            Message::NotWanted { task } => {
                self.waiting.remove(&task);
                self.take(Input::Cancel { task });
            }
        }
    }

    fn look(&mut self) {
        let memory = (self.memory)();
        self.take(Input::Memory(memory));
    }

    /// An input whose refusal means that it has come too late.
    fn take(&mut self, input: Input) {
        let _ = self.step(input);
    }

    fn step(&mut self, input: Input) -> Result<(), StepError> {
        let step = self.scheduler.step(self.now(), input)?;
        for effect in step.effects {
            self.carry_out(effect);
        }
        Ok(())
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Start { task, attempt } => {
                let (revoke, revoked) = oneshot::channel();
                self.running.insert(task.id, (attempt, Some(revoke)));
                let granted = Granted { attempt, revoked };
                let told = self.waiting.remove(&task.id);
                let is_taken = told.is_some_and(|ready| ready.send(Ok(granted)).is_ok());
                if !is_taken {
                    self.over(task.id, Report::Ended);
                }
            }
            // A turn of a model or a test run is not frozen in the middle.
            Effect::Pause { task } => self.report(task, Report::Unpausable),
            Effect::End { task, .. } => match self.running.get_mut(&task) {
                Some((_, revoke)) => {
                    if let Some(revoke) = revoke.take() {
                        // It reports its end itself.
                        let _ = revoke.send(());
                    }
                }
                None => self.over(task, Report::Ended),
            },
            Effect::Warn { .. } | Effect::Spare { .. } | Effect::Resume { .. } => {}
        }
    }

    fn over(&mut self, task: TaskId, report: Report) {
        self.report(task, report);
        self.running.remove(&task);
    }

    fn report(&mut self, task: TaskId, report: Report) {
        if let Some((attempt, _)) = self.running.get(&task) {
            let attempt = *attempt;
            self.take(Input::Report {
                task,
                attempt,
                report,
            });
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
mod tests {
    use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    fn work(template: &'static str) -> Work {
        Work {
            name: "a turn".to_owned(),
            kind: Kind::AiGenerate,
            template: Some(template),
            priority: Priority::NORMAL,
        }
    }

    fn slots() -> Slots {
        Slots::start(Limits::default(), Arc::new(Memory::default)).unwrap()
    }

    /// Lets everything happen that can.
    async fn settle() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn two_of_a_kind_run_at_once_and_the_third_waits_for_one_of_them() {
        let slots = slots();
        let running = Arc::new(AtomicUsize::new(0));
        let go = Arc::new(Notify::new());
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let (slots, running, go) = (slots.clone(), Arc::clone(&running), Arc::clone(&go));
            tasks.spawn(async move {
                let doing = async {
                    running.fetch_add(1, Ordering::SeqCst);
                    go.notified().await;
                };
                slots.run(work("ai-provider"), doing).await.unwrap();
            });
        }
        settle().await;
        assert_eq!(running.load(Ordering::SeqCst), 2);
        // Another kind of sandbox is free.
        slots.run(work("code-executor"), async {}).await.unwrap();
        go.notify_one();
        settle().await;
        assert_eq!(running.load(Ordering::SeqCst), 3);
        go.notify_waiters();
        tasks.join_all().await;
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_gives_up_takes_no_slot_with_it() {
        let slots = slots();
        let forever = || std::future::pending::<()>();
        let first = tokio::spawn({
            let slots = slots.clone();
            async move { slots.run(work("policy-sandbox"), forever()).await }
        });
        settle().await;
        let second = tokio::spawn({
            let slots = slots.clone();
            async move { slots.run(work("policy-sandbox"), forever()).await }
        });
        settle().await;
        // One that waits, and then the one that runs.
        second.abort();
        first.abort();
        settle().await;
        let done = slots.run(work("policy-sandbox"), async { 7 });
        let done = tokio::time::timeout(Duration::from_secs(5), done).await;
        assert_eq!(done.unwrap().unwrap(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_kernel_that_is_nearly_full_starts_nothing_until_it_is_not() {
        let kernel = Arc::new(AtomicU8::new(85));
        let look = Arc::clone(&kernel);
        let memory = move || Memory {
            kernel: look.load(Ordering::SeqCst),
            sandboxes: 0,
        };
        let slots = Slots::start(Limits::default(), Arc::new(memory)).unwrap();
        let mut waits = tokio::spawn({
            let slots = slots.clone();
            async move { slots.run(work("ai-provider"), async {}).await }
        });
        let early = tokio::time::timeout(Duration::from_secs(60), &mut waits).await;
        assert!(early.is_err(), "it started");
        kernel.store(40, Ordering::SeqCst);
        waits.await.unwrap().unwrap();
    }

    #[test]
    fn this_process_knows_how_full_it_is() {
        let before = own_memory().kernel;
        let ballast = std::hint::black_box(vec![1_u8; 64 << 20]);
        let full = own_memory().kernel;
        assert!((before + 12..80).contains(&full), "{before} {full}");
        drop(ballast);
    }
}
