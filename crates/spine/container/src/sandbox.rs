//! One container as its launcher sees it: commands, deadlines, limits, the end.
//!
//! A task of its own for each sandbox: what one waits for holds up no other. A
//! limit that ends a command is remembered with it, so that its exit says the
//! limit and not the signal. Next: `creation` makes it, `launcher` asks it.

mod exec;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::id::SandboxId;
use fluffy_contract::isolation::{Command, Exit, Limit, SandboxSpec};
use fluffy_sandbox::failure::{ended, refused};
use fluffy_sandbox::protocol::{self, Answer, ExecId, Failure, Notice, Order, Report};
use fluffy_sandbox::template::Lifetime;
use fluffy_sandbox::watch::{Memory, Watch};
use rustix::net::Shutdown;
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use self::exec::{Exec, explain};
use crate::counters::Counters;
use crate::creation::{Heard, Made, NotMade, Site};
use crate::launcher::Client;

/// How long a killed container may take to notice before the engine ends it.
const END_LIMIT: Duration = Duration::from_secs(5);

/// What a sandbox is asked; each is answered once.
#[derive(Debug)]
pub(crate) enum Asked {
    Exec(ExecId, Command, Vec<OwnedFd>),
    Signal(ExecId, i32),
    End(ExecId, Limit),
    EndAll,
    Listen(u16),
    Pause,
    Resume,
    Stats,
    Stop(Duration),
    Kill,
    Cleanup,
}

/// A question to a sandbox and its number.
pub(crate) type Numbered = (u64, Asked);

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It runs commands.
    Running,
    /// Its processes are stopped where they are, and their time with them.
    Paused(Pausing, Instant),
    /// Its processes were asked to end; the question waits.
    Stopping { question: u64, until: Instant },
    /// Its init is gone. Only cleaning up is left.
    Ended,
}

/// Who stopped the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pausing {
    Engine,
    /// Engines of ordinary users often may not.
    Signals,
}

/// Makes a sandbox, serves it, and removes it at the end.
pub(crate) async fn live(
    site: Arc<Site>,
    client: Client,
    (question, sandbox, spec): (u64, SandboxId, SandboxSpec),
    mut asked: mpsc::UnboundedReceiver<Numbered>,
) {
    match site.make(sandbox, &spec).await {
        Ok(made) => {
            let mut running = Running::new(Arc::clone(&site), client.clone(), made);
            client.answer(question, Answer::Done, &[]);
            running.serve(&mut asked).await;
        }
        Err(not_made) => {
            let answer = match not_made {
                NotMade::Pending(progress) => Answer::Pending { progress },
                NotMade::Failed(failure) => Answer::Failed { failure },
            };
            client.answer(question, answer, &[]);
        }
    }
    // What was asked meanwhile finds nothing; cleaning that up is done.
    asked.close();
    while let Some((question, asked)) = asked.recv().await {
        let answer = match asked {
            Asked::Cleanup | Asked::Kill | Asked::Stop(_) => Answer::Done,
            _ => Answer::Failed { failure: ended() },
        };
        client.answer(question, answer, &[]);
    }
}

struct Running {
    site: Arc<Site>,
    client: Client,
    made: Made,
    counters: Counters,
    watch: Watch,
    state: State,
    /// Questions whose orders init has not yet reported on, oldest first.
    waiting: VecDeque<Option<u64>>,
    execs: BTreeMap<ExecId, Exec>,
    /// Whether a command may have left processes behind.
    used: bool,
}

impl Running {
    fn new(site: Arc<Site>, client: Client, made: Made) -> Self {
        let counters = Counters::of_container(&made.container, made.process);
        let memory = match counters.counts_memory() {
            true => Memory::Limited,
            false => Memory::Unlimited,
        };
        Self {
            watch: Watch::over(&made.plan, memory, made.process),
            counters,
            site,
            client,
            made,
            state: State::Running,
            waiting: VecDeque::new(),
            execs: BTreeMap::new(),
            used: false,
        }
    }

    /// Serves until it is cleaned up or the launcher ends.
    async fn serve(&mut self, asked: &mut mpsc::UnboundedReceiver<Numbered>) {
        loop {
            let due = self.due();
            tokio::select! {
                heard = self.made.reports.recv(), if self.state != State::Ended => {
                    match heard {
                        Some(Heard::Report(report, descriptors)) => {
                            self.take_report(report, &descriptors);
                        }
                        Some(Heard::Gone) | None => self.lost().await,
                    }
                }
                question = asked.recv() => match question {
                    Some((question, Asked::Cleanup)) => {
                        let answer = self.remove().await;
                        self.client.answer(question, answer, &[]);
                        return;
                    }
                    Some((question, asked)) => self.answer(question, asked).await,
                    None => {
                        self.remove().await;
                        return;
                    }
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.tick().await;
                }
            }
        }
    }

    async fn answer(&mut self, question: u64, asked: Asked) {
        let answered = match asked {
            Asked::Exec(exec, command, streams) => self.exec(question, exec, command, &streams),
            Asked::Signal(exec, signal) => {
                self.order(Some(question), &Order::Signal { exec, signal }, &[])
            }
            Asked::End(exec, limit) => {
                self.end_exec(exec, limit).await;
                Ok(Some(Answer::Done))
            }
            Asked::EndAll => self.in_use().and_then(|()| {
                let signal = Signal::KILL.as_raw();
                self.order(Some(question), &Order::SignalAll { signal }, &[])
            }),
            Asked::Listen(port) => self
                .in_use()
                .and_then(|()| self.order(Some(question), &Order::Listen { port }, &[])),
            Asked::Pause => self.pause().await,
            Asked::Resume => self.resume().await,
            Asked::Stats => self.stats().await,
            Asked::Stop(grace) => self.stop(question, grace).await,
            Asked::Kill => {
                self.kill().await;
                Ok(Some(Answer::Done))
            }
            Asked::Cleanup => Ok(Some(self.remove().await)),
        };
        match answered {
            Ok(None) => {}
            Ok(Some(answer)) => self.client.answer(question, answer, &[]),
            Err(failure) => self
                .client
                .answer(question, Answer::Failed { failure }, &[]),
        }
    }

    fn order(
        &mut self,
        question: Option<u64>,
        order: &Order,
        streams: &[OwnedFd],
    ) -> Result<Option<Answer>, Failure> {
        if self.state == State::Ended {
            return Err(ended());
        }
        let streams: Vec<_> = streams.iter().map(AsFd::as_fd).collect();
        protocol::send(&self.made.control, order, &streams).map_err(|_| ended())?;
        self.waiting.push_back(question);
        Ok(None)
    }

    fn in_use(&self) -> Result<(), Failure> {
        match self.state {
            State::Running => Ok(()),
            State::Paused(..) => Err(refused("the sandbox", "the sandbox is paused")),
            State::Stopping { .. } | State::Ended => Err(ended()),
        }
    }

    fn exec(
        &mut self,
        question: u64,
        exec: ExecId,
        command: Command,
        streams: &[OwnedFd],
    ) -> Result<Option<Answer>, Failure> {
        self.in_use()?;
        if self.execs.contains_key(&exec) {
            return Err(refused("the sandbox", "the command's number is in use"));
        }
        let most = match self.made.plan.limits.time {
            Lifetime::Total(span) => Some(Duration::from(span)),
            // Silence is counted by whoever reads the output.
            Lifetime::Owner | Lifetime::Silent(_) => None,
        };
        let time = [most, command.time.map(Duration::from)];
        let time = time.into_iter().flatten().min();
        let started = Exec {
            deadline: time.map(|time| Instant::now() + time),
            ending: None,
            before: self.counters.read(),
        };
        self.watch.begin(std::time::Instant::now());
        self.used = true;
        self.execs.insert(exec, started);
        let ordered = self.order(Some(question), &Order::Exec { exec, command }, streams);
        if ordered.is_err() {
            self.execs.remove(&exec);
        }
        ordered
    }

    fn take_report(&mut self, report: Report, descriptors: &[OwnedFd]) {
        match report {
            Report::Ready => {}
            Report::Done => {
                if let Some(Some(question)) = self.waiting.pop_front() {
                    self.client.answer(question, Answer::Done, descriptors);
                }
            }
            Report::Failed { failure } => {
                if let Some(Some(question)) = self.waiting.pop_front() {
                    self.client
                        .answer(question, Answer::Failed { failure }, &[]);
                }
            }
            Report::Exited { exec, exit } => {
                if let Some(ended) = self.execs.remove(&exec) {
                    let exit = explain(&ended, exit, self.counters.read());
                    self.tell_exit(exec, exit);
                }
                if let (State::Stopping { .. }, true) = (self.state, self.execs.is_empty()) {
                    self.hang_up();
                }
            }
        }
    }

    fn tell_exit(&self, exec: ExecId, exit: Exit) {
        let sandbox = self.made.plan.sandbox;
        self.client.notice(Notice::Exited {
            sandbox,
            exec,
            exit,
        });
    }

    /// Its init is gone, and with it every process.
    async fn lost(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Ended);
        if state == State::Ended {
            return;
        }
        // The group is gone with its last process; the engine remembers.
        let condition = self.site.engine.inspect(&self.made.container).await;
        let out_of_memory = condition.is_ok_and(|condition| condition.out_of_memory);
        for question in std::mem::take(&mut self.waiting).into_iter().flatten() {
            self.client
                .answer(question, Answer::Failed { failure: ended() }, &[]);
        }
        let mut limit = out_of_memory.then_some(Limit::Memory);
        for (exec, mut lost) in std::mem::take(&mut self.execs) {
            lost.ending = lost.ending.or(limit);
            let killed = Exit::Signal {
                signal: Signal::KILL.as_raw(),
            };
            let exit = explain(&lost, killed, lost.before);
            if let Exit::Limit { limit: by } = exit {
                limit = Some(by);
            }
            self.tell_exit(exec, exit);
        }
        let sandbox = self.made.plan.sandbox;
        match state {
            State::Stopping { question, .. } => self.client.answer(question, Answer::Done, &[]),
            _ => self.client.notice(Notice::Ended { sandbox, limit }),
        }
    }

    fn due(&self) -> Option<Instant> {
        let own = match self.state {
            State::Ended | State::Paused(..) => return None,
            State::Stopping { until, .. } => Some(until),
            State::Running => None,
        };
        let look = self.watch.next_check().filter(|_| self.used);
        let deadlines = self.execs.values().filter(|exec| exec.ending.is_none());
        deadlines
            .filter_map(|exec| exec.deadline)
            .chain(own)
            .chain(look.map(Instant::from_std))
            .min()
    }

    /// Ends what is over its time or its limits.
    async fn tick(&mut self) {
        let now = Instant::now();
        if let State::Stopping { until, .. } = self.state
            && until <= now
        {
            self.kill().await;
            return;
        }
        if matches!(self.state, State::Paused(..)) {
            return;
        }
        let late = |exec: &Exec| exec.ending.is_none() && exec.deadline.is_some_and(|at| at <= now);
        let late: Vec<ExecId> = self
            .execs
            .iter()
            .filter(|(_, exec)| late(exec))
            .map(|(id, _)| *id)
            .collect();
        for exec in late {
            self.end_exec(exec, Limit::Time).await;
        }
        let due = self.watch.next_check();
        if due.is_some_and(|due| Instant::from_std(due) <= now)
            && let Some(limit) = self.look()
        {
            if self.execs.is_empty() {
                let signal = Signal::KILL.as_raw();
                let _ = self.order(None, &Order::SignalAll { signal }, &[]);
            }
            for exec in self.execs.keys().copied().collect::<Vec<_>>() {
                self.end_exec(exec, limit).await;
            }
        }
        // Nobody is left to take anything until the next command.
        self.used = !self.execs.is_empty() || self.watch.stats().pids > 1;
    }

    /// Looks at what nobody else limits.
    fn look(&mut self) -> Option<Limit> {
        let over = self.watch.check(std::time::Instant::now());
        // Where memory is not counted by a group, processes are not either.
        let many = !self.counters.counts_processes()
            && self.watch.stats().pids > self.made.plan.limits.pids.saturating_add(1);
        over.or(many.then_some(Limit::Pids))
    }

    async fn end_exec(&mut self, exec: ExecId, limit: Limit) {
        let alone = self.execs.len() == 1;
        let Some(ending) = self.execs.get_mut(&exec) else {
            return;
        };
        ending.ending.get_or_insert(limit);
        if let State::Paused(..) = self.state {
            // A frozen process does not even die.
            let _ = self.resume().await;
        }
        let signal = Signal::KILL.as_raw();
        // Alone, everything in the sandbox is its own: also what left its
        // session to live on.
        let order = if alone {
            Order::SignalAll { signal }
        } else {
            Order::Signal { exec, signal }
        };
        let _ = self.order(None, &order, &[]);
    }

    async fn pause(&mut self) -> Result<Option<Answer>, Failure> {
        self.in_use()?;
        if self.site.engine.pause(&self.made.container).await.is_ok() {
            self.state = State::Paused(Pausing::Engine, Instant::now());
        } else {
            let signal = Signal::STOP.as_raw();
            self.order(None, &Order::SignalAll { signal }, &[])?;
            self.state = State::Paused(Pausing::Signals, Instant::now());
        }
        Ok(Some(Answer::Done))
    }

    async fn resume(&mut self) -> Result<Option<Answer>, Failure> {
        let State::Paused(by, since) = self.state else {
            return Err(refused("the sandbox", "the sandbox is not paused"));
        };
        match by {
            Pausing::Engine => {
                let resumed = self.site.engine.resume(&self.made.container).await;
                resumed.map_err(|error| error.failure())?;
            }
            Pausing::Signals => {
                let signal = Signal::CONT.as_raw();
                self.order(None, &Order::SignalAll { signal }, &[])?;
            }
        }
        self.state = State::Running;
        let stood = since.elapsed();
        for deadline in self
            .execs
            .values_mut()
            .filter_map(|exec| exec.deadline.as_mut())
        {
            *deadline += stood;
        }
        Ok(Some(Answer::Done))
    }

    async fn stats(&mut self) -> Result<Option<Answer>, Failure> {
        if self.state == State::Ended {
            return Err(ended());
        }
        if !self.counters.counts_memory() {
            let stats = self.watch.stats();
            return Ok(Some(Answer::Stats { stats }));
        }
        let stats = self.site.engine.stats(&self.made.container).await;
        stats
            .map(|stats| Some(Answer::Stats { stats }))
            .map_err(|error| error.failure())
    }

    /// Asks everything inside to end; at the end of the grace it is ended.
    async fn stop(&mut self, question: u64, grace: Duration) -> Result<Option<Answer>, Failure> {
        match self.state {
            State::Ended => return Ok(Some(Answer::Done)),
            State::Stopping { .. } => {
                return Err(refused("the sandbox", "the sandbox is being stopped"));
            }
            State::Paused(..) => {
                self.resume().await?;
            }
            State::Running => {}
        }
        let signal = Signal::TERM.as_raw();
        self.order(None, &Order::SignalAll { signal }, &[])?;
        let until = Instant::now() + grace;
        self.state = State::Stopping { question, until };
        if self.execs.is_empty() {
            self.hang_up();
        }
        Ok(None)
    }

    /// Init ends when its socket closes, and the kernel ends the rest with it.
    fn hang_up(&self) {
        let _ = rustix::net::shutdown(&self.made.control, Shutdown::Both);
    }

    /// Ends all processes; the container itself stays until it is removed.
    async fn kill(&mut self) {
        if let State::Paused(..) = self.state {
            let _ = self.resume().await;
        }
        if self.state == State::Ended {
            return;
        }
        self.hang_up();
        let container = self.made.container.clone();
        let gone = async {
            while let Some(Heard::Report(report, descriptors)) = self.made.reports.recv().await {
                drop((report, descriptors));
            }
            // The socket closes just before the process is gone.
            while let Ok(condition) = self.site.engine.inspect(&container).await
                && condition.process.is_some()
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(END_LIMIT, gone).await.is_err() {
            let _ = self.site.engine.remove(&container).await;
        }
        self.lost().await;
    }

    /// Ends it and removes what it left. Every step runs, whatever another did.
    async fn remove(&mut self) -> Answer {
        if let State::Paused(Pausing::Engine, _) = self.state {
            let _ = self.site.engine.resume(&self.made.container).await;
        }
        // The engine ends it: Docker keeps a ghost of a container that ends by
        // itself while it is removed.
        let removed = self.site.engine.remove(&self.made.container).await;
        self.hang_up();
        self.site.remove_rest(self.made.plan.sandbox).await;
        // Whoever still waits for a command hears that it is gone.
        for exec in std::mem::take(&mut self.execs).into_keys() {
            let signal = Signal::KILL.as_raw();
            self.tell_exit(exec, Exit::Signal { signal });
        }
        for question in std::mem::take(&mut self.waiting).into_iter().flatten() {
            self.client
                .answer(question, Answer::Failed { failure: ended() }, &[]);
        }
        if let State::Stopping { question, .. } = self.state {
            self.client.answer(question, Answer::Done, &[]);
        }
        self.state = State::Ended;
        match removed {
            Ok(_) => Answer::Done,
            Err(error) => Answer::Failed {
                failure: error.failure(),
            },
        }
    }
}
