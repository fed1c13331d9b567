//! Keeps one extension alive: asks it, charges its faults, restarts or disables.
//!
//! Each extension has a thread of its own that owns its worker process, so one
//! extension's fault never touches another, callers need no lock, and the
//! worker's parent thread lives as long as it should. Never turns silence into
//! consent: every way out of here is an answer or a failure. Next: `process`.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};

use fluffy_base::{Clock, Timestamp};
use fluffy_policy::extension::Opinion;

use crate::process::{Fault, Limits, StartWorkerError, Worker, WorkerCommand};
use crate::wire::Verdict;

/// A second fault within this span disables an extension.
pub(crate) const WINDOW: Duration = Duration::from_secs(30);
/// How many callers may wait for one extension before the next one blocks.
const QUEUE: usize = 64;

/// The one way to reach an extension; dropping it ends the worker.
#[derive(Debug)]
pub(crate) struct Keeper {
    // `None` only while being dropped.
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// Everything that a keeper needs to start workers.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) name: String,
    pub(crate) source: String,
    pub(crate) command: WorkerCommand,
    pub(crate) limits: Limits,
    pub(crate) clock: Arc<dyn Clock>,
}

/// What an extension says, with its reason.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) opinion: Opinion,
    pub(crate) reason: String,
}

/// How an extension is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It answers.
    Running {
        /// The process id of its worker.
        worker: u32,
        /// How often its worker was replaced after a fault.
        restarts: u32,
    },
    /// It failed twice within 30 s: every request for its actions is denied
    /// until a person reloads.
    Disabled {
        /// Since when.
        since: Timestamp,
        /// What it did last.
        because: String,
    },
}

/// An answer that arrives later.
pub(crate) struct Pending(Receiver<Said>);

enum Job {
    Ask {
        request: Arc<str>,
        now: Timestamp,
        reply: SyncSender<Said>,
    },
    Report(SyncSender<Health>),
}

/// A keeper whose extension is still being loaded.
pub(crate) struct Loading {
    keeper: Keeper,
    loaded: Receiver<Result<Option<Vec<String>>, StartWorkerError>>,
}

impl Keeper {
    /// Starts the thread, which starts the worker; several load side by side.
    pub(crate) fn start(setting: Setting) -> io::Result<Loading> {
        let (jobs, inbox) = sync_channel(QUEUE);
        let (announce, loaded) = sync_channel(1);
        let thread = thread::Builder::new()
            .name(format!("policy-{}", setting.name))
            .spawn(move || {
                match Worker::start(&setting.command, &setting.source, setting.limits) {
                    Ok((worker, actions)) => {
                        if announce.send(Ok(actions)).is_ok() {
                            let guard = Guard {
                                setting,
                                state: State::Running(worker),
                                last_fault: None,
                                restarts: 0,
                            };
                            guard.serve(&inbox);
                        }
                    }
                    // Nobody listening means nobody to tell.
                    Err(failure) => drop(announce.send(Err(failure))),
                }
            })?;
        let keeper = Self {
            jobs: Some(jobs),
            thread: Some(thread),
        };
        Ok(Loading { keeper, loaded })
    }

    /// Puts a question to the extension.
    pub(crate) fn ask(&self, request: Arc<str>, now: Timestamp) -> Pending {
        let (reply, answer) = sync_channel(1);
        if let Some(jobs) = &self.jobs {
            // A closed inbox drops the reply, which reads as a failure below.
            let _ = jobs.send(Job::Ask {
                request,
                now,
                reply,
            });
        }
        Pending(answer)
    }

    /// How the extension is doing; waits for the evaluations before it.
    pub(crate) fn health(&self) -> Option<Health> {
        let (reply, answer) = sync_channel(1);
        self.jobs.as_ref()?.send(Job::Report(reply)).ok()?;
        answer.recv().ok()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // So that no process is left when the host is gone.
            let _ = thread.join();
        }
    }
}

impl Loading {
    /// Waits for the extension; the actions it declares (`None`: all).
    pub(crate) fn finish(self) -> Result<(Keeper, Option<Vec<String>>), StartWorkerError> {
        match self.loaded.recv() {
            Ok(loaded) => loaded.map(|actions| (self.keeper, actions)),
            Err(RecvError) => Err(StartWorkerError::Fault(Fault::Died)),
        }
    }
}

impl Pending {
    /// The answer; a keeper that is gone has failed.
    pub(crate) fn wait(self) -> Said {
        self.0.recv().unwrap_or_else(|RecvError| Said {
            opinion: Opinion::Failed,
            reason: "its keeper is gone; reload the policy".to_owned(),
        })
    }
}

/// The thread's own state.
struct Guard {
    setting: Setting,
    state: State,
    last_fault: Option<Timestamp>,
    restarts: u32,
}

enum State {
    /// A worker is there; between two jobs it has a fresh engine.
    Running(Worker),
    /// Too many faults: nothing runs any more.
    Disabled { since: Timestamp, because: String },
}

/// What is to be done once the caller has its answer.
enum Next {
    /// Wait until the worker has a fresh engine.
    Settle,
    /// Discard the worker and start another.
    Replace,
    /// Nothing.
    Rest,
}

impl Guard {
    fn serve(mut self, inbox: &Receiver<Job>) {
        while let Ok(job) = inbox.recv() {
            match job {
                Job::Ask {
                    request,
                    now,
                    reply,
                } => {
                    let (said, next) = self.ask(&request, now);
                    // A caller that is gone needs no answer.
                    let _ = reply.send(said);
                    self.recover(next);
                }
                Job::Report(reply) => drop(reply.send(self.health())),
            }
        }
    }

    fn ask(&mut self, request: &str, now: Timestamp) -> (Said, Next) {
        let judged = match &mut self.state {
            State::Running(worker) => worker.judge(request, now),
            State::Disabled { since, because } => {
                let reason = format!(
                    "it is disabled since {since} because {because}; \
                     reload the policy to enable it"
                );
                return (failed(reason), Next::Rest);
            }
        };
        match judged {
            Ok((verdict, reason)) => {
                let opinion = opinion_of(verdict);
                (Said { opinion, reason }, Next::Settle)
            }
            Err(fault) => {
                let (reason, next) = self.charge(&fault);
                (failed(reason), next)
            }
        }
    }

    /// Gets ready for the next request, off the last caller's time.
    fn recover(&mut self, next: Next) {
        let next = match (next, &mut self.state) {
            (Next::Settle, State::Running(worker)) => match worker.settle() {
                Ok(()) => Next::Rest,
                Err(fault) => self.charge(&fault).1,
            },
            (next, _) => next,
        };
        if matches!(next, Next::Replace) {
            self.replace();
        }
    }

    /// Counts a fault: the first costs the worker, the second the extension.
    fn charge(&mut self, fault: &Fault) -> (String, Next) {
        let now = self.setting.clock.now();
        // A clock that went backwards counts as "just now".
        let again = self
            .last_fault
            .is_some_and(|earlier| now.since(earlier) < WINDOW);
        self.last_fault = Some(now);
        if !again {
            return (fault.to_string(), Next::Replace);
        }
        self.disable(now, fault.to_string());
        let reason = format!(
            "{fault}; this was the second fault within 30 s, so it is disabled \
             until the policy is reloaded"
        );
        (reason, Next::Rest)
    }

    fn replace(&mut self) {
        if let State::Running(worker) = &mut self.state {
            // First, because it may be busy for ever.
            worker.kill();
        }
        let setting = &self.setting;
        match Worker::start(&setting.command, &setting.source, setting.limits) {
            Ok((worker, _)) => {
                self.restarts = self.restarts.saturating_add(1);
                self.state = State::Running(worker);
                // At most once per window, so it cannot flood the log.
                tracing::warn!(extension = setting.name, "policy extension restarted");
            }
            Err(failure) => {
                let since = setting.clock.now();
                self.disable(since, format!("it could not be restarted: {failure}"));
            }
        }
    }

    fn disable(&mut self, since: Timestamp, because: String) {
        tracing::error!(
            extension = self.setting.name,
            because,
            "policy extension disabled: its actions are denied until a reload"
        );
        // Dropping the worker kills it.
        self.state = State::Disabled { since, because };
    }

    fn health(&self) -> Health {
        match &self.state {
            State::Running(worker) => Health::Running {
                worker: worker.id(),
                restarts: self.restarts,
            },
            State::Disabled { since, because } => Health::Disabled {
                since: *since,
                because: because.clone(),
            },
        }
    }
}

fn failed(reason: String) -> Said {
    Said {
        opinion: Opinion::Failed,
        reason,
    }
}

fn opinion_of(verdict: Verdict) -> Opinion {
    match verdict {
        Verdict::Allow => Opinion::Allow,
        Verdict::Deny => Opinion::Deny,
        Verdict::RequireReview => Opinion::RequireReview,
        Verdict::Pass => Opinion::Pass,
    }
}
