//! One sandbox as its launcher sees it: init, commands, deadlines, limits.
//!
//! Everything here answers at once or says what it waits for; nothing blocks.
//! A limit that ends a command is remembered with it, so that its exit says
//! the limit and not the signal. Next: `init` for the other end of the socket.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fluffy_contract::isolation::{Command, Exit, Limit, Stats};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::cgroup::{Group, Hits};
use crate::failure;
use crate::guard::Guard;
use crate::init::{self, Birth};
use crate::plan::{Engine, Plan};
use crate::protocol::{self, Answer, ExecId, Failure, Order, Report};
use crate::seccomp::Filter;
use crate::sys::linux::call::{self, Forked};
use crate::template::Lifetime;
use crate::watch::Watch;

/// How long making a sandbox may take before it counts as failed.
const CREATION: Duration = Duration::from_secs(30);

/// What the launcher must do for a sandbox.
#[derive(Debug)]
pub(super) enum Effect {
    /// Answer a question, with descriptors.
    Answer(u64, Answer, Vec<OwnedFd>),
    /// Say that a command ended.
    Exited(ExecId, Exit),
    /// Say that the sandbox ended by itself.
    Ended(Option<Limit>),
}

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its init builds it; the question waits.
    Creating {
        /// Who asked.
        question: u64,
        /// When it counts as failed.
        until: Instant,
    },
    /// It runs commands.
    Running,
    /// Its processes are stopped where they are, and their time with them.
    Paused {
        /// When they were.
        since: Instant,
    },
    /// Its processes were asked to end.
    Stopping {
        /// When they are ended.
        until: Instant,
        /// Who asked.
        question: u64,
    },
    /// Its init is gone. Only cleaning up is left.
    Ended,
}

/// What is needed to start one.
pub(super) struct Start {
    pub(super) plan: Plan,
    pub(super) filter: Filter,
    pub(super) group: Option<Group>,
    pub(super) anchor: PathBuf,
    pub(super) question: u64,
    /// Where what comes later lies on the host; nothing if all comes at once.
    pub(super) waiting: Option<Vec<PathBuf>>,
}

/// An order that init has not reported on.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// Who asked, if anybody did.
    question: Option<u64>,
    /// The command it starts.
    exec: Option<ExecId>,
}

/// A command that runs.
#[derive(Debug)]
struct Exec {
    deadline: Option<Instant>,
    /// Why it is being ended.
    ending: Option<Limit>,
    /// What the limits had counted when it started.
    before: Hits,
}

/// One sandbox.
pub(super) struct Running {
    plan: Plan,
    pid: Pid,
    pidfd: OwnedFd,
    control: OwnedFd,
    group: Option<Group>,
    watch: Watch,
    state: State,
    /// Questions whose orders init has not yet reported on, oldest first.
    waiting: VecDeque<Waiting>,
    execs: BTreeMap<ExecId, Exec>,
    /// Whether a command ever ran.
    ran: bool,
    /// Whether a command may have left processes behind.
    used: bool,
}

impl Running {
    /// Clones an init into new namespaces; it reports when it is ready.
    pub(super) fn start(start: Start) -> Result<Self, Failure> {
        let Start {
            plan,
            filter,
            group,
            anchor,
            question,
            waiting,
        } = start;
        let system = |what: &'static str| move |error: io::Error| failure::system(what, &error);
        let flags = SocketFlags::CLOEXEC;
        let (control, inner) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(io::Error::from)
            .map_err(system("make a socket"))?;
        let spawned = match plan.engine {
            Engine::Native => clone_init(inner, |control, ids| Birth {
                plan: &plan,
                group: group.as_ref(),
                anchor: &anchor,
                ids,
                filter,
                waiting: waiting.as_deref(),
                control,
            }),
            Engine::Bwrap | Engine::Reduced | Engine::Container => {
                crate::foreign::spawn(&plan, group.as_ref(), inner)
            }
        };
        let (pid, pidfd) = match spawned {
            Ok(spawned) => spawned,
            Err(failure) => {
                if let Some(group) = group {
                    group.remove();
                }
                return Err(failure);
            }
        };
        let running = Self {
            watch: Watch::new(&plan, group.as_ref(), pid),
            plan,
            pid,
            pidfd,
            control,
            group,
            state: State::Creating {
                question,
                until: Instant::now() + CREATION,
            },
            waiting: VecDeque::new(),
            execs: BTreeMap::new(),
            ran: false,
            used: false,
        };
        match running.begin() {
            Ok(()) => Ok(running),
            Err(error) => {
                running.cleanup();
                Err(failure::system("tell the sandbox's init its plan", &error))
            }
        }
    }

    /// A cloned init has its plan in memory; another one is told.
    fn begin(&self) -> io::Result<()> {
        match self.plan.engine {
            Engine::Native => Ok(()),
            Engine::Bwrap | Engine::Reduced | Engine::Container => {
                protocol::send(&self.control, &self.plan, &[])
            }
        }
    }

    /// Its first process.
    pub(super) fn process(&self) -> Pid {
        self.pid
    }

    /// What wakes the launcher for it.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let alive = self.state != State::Ended;
        alive
            .then(|| [self.control.as_fd(), self.pidfd.as_fd()])
            .into_iter()
            .flatten()
    }

    /// When it next needs a [`tick`](Self::tick).
    pub(super) fn due(&self) -> Option<Instant> {
        let own = match self.state {
            State::Creating { until, .. } | State::Stopping { until, .. } => Some(until),
            State::Ended | State::Paused { .. } => return None,
            State::Running => None,
        };
        let watch = self.used.then(|| self.watch.next_check()).flatten();
        self.execs
            .values()
            .filter(|exec| exec.ending.is_none())
            .filter_map(|exec| exec.deadline)
            .chain(own)
            .chain(watch)
            .min()
    }

    /// Takes what init said, or that it is gone.
    pub(super) fn hear(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        // What it said before it died counts, so the socket comes first.
        while readable(&self.control) {
            match protocol::receive::<Report>(&self.control) {
                Ok(Some((report, descriptors))) => {
                    effects.extend(self.take_report(report, descriptors));
                }
                Ok(None) | Err(_) => {
                    effects.extend(self.lost());
                    return effects;
                }
            }
        }
        if readable(&self.pidfd) {
            effects.extend(self.lost());
        }
        effects
    }

    fn take_report(&mut self, report: Report, descriptors: Vec<OwnedFd>) -> Option<Effect> {
        match (report, self.state) {
            (Report::Ready, State::Creating { question, .. }) => {
                self.state = State::Running;
                Some(Effect::Answer(question, Answer::Done, Vec::new()))
            }
            (Report::Failed { failure }, State::Creating { question, .. }) => {
                self.state = State::Ended;
                Some(Effect::Answer(
                    question,
                    Answer::Failed { failure },
                    Vec::new(),
                ))
            }
            (Report::Done, _) => {
                let question = self.waiting.pop_front()?.question?;
                Some(Effect::Answer(question, Answer::Done, descriptors))
            }
            (Report::Failed { failure }, _) => {
                let Waiting { question, exec } = self.waiting.pop_front()?;
                if let Some(exec) = exec {
                    // It never ran, so it never ends.
                    self.execs.remove(&exec);
                }
                let failed = Answer::Failed { failure };
                Some(Effect::Answer(question?, failed, Vec::new()))
            }
            (Report::Exited { exec, exit }, _) => {
                let ended = self.execs.remove(&exec)?;
                let exit = self.explain(&ended, exit);
                if self.execs.is_empty() && matches!(self.state, State::Stopping { .. }) {
                    // Everything that was asked to end has; init goes too.
                    self.end_processes();
                }
                Some(Effect::Exited(exec, exit))
            }
            (Report::Ready, _) => None,
        }
    }

    /// A command that a limit ended says the limit.
    fn explain(&self, exec: &Exec, exit: Exit) -> Exit {
        if matches!(exit, Exit::Code { code: 0 } | Exit::NotStarted { .. }) {
            return exit;
        }
        let hits = self.group.as_ref().map(Group::hits).unwrap_or_default();
        let limit = exec.ending.or({
            if hits.memory > exec.before.memory {
                Some(Limit::Memory)
            } else if hits.pids > exec.before.pids || self.is_full() {
                Some(Limit::Pids)
            } else if exit
                == (Exit::Signal {
                    signal: libc::SIGXFSZ,
                })
            {
                Some(Limit::Disk)
            } else {
                None
            }
        });
        limit.map_or(exit, |limit| Exit::Limit { limit })
    }

    /// Whether a control group counts processes.
    fn counts_pids(&self) -> bool {
        self.group.as_ref().is_some_and(Group::limits_pids)
    }

    /// Whether not one process more fits in. Without a control group nobody
    /// counts how often that was tried.
    fn is_full(&self) -> bool {
        !self.counts_pids()
            && self.state == State::Running
            && self.watch.stats().pids >= self.plan.limits.pids
    }

    /// Its init is gone, and with it every process.
    fn lost(&mut self) -> Vec<Effect> {
        if self.state == State::Ended {
            return Vec::new();
        }
        let state = std::mem::replace(&mut self.state, State::Ended);
        let mut effects = Vec::new();
        let questions = std::mem::take(&mut self.waiting);
        let answer = |question, answer| Effect::Answer(question, answer, Vec::new());
        match state {
            State::Creating { question, .. } => {
                let error = io::Error::other("its init ended before it was ready");
                let failure = failure::system("make the sandbox", &error);
                effects.push(answer(question, Answer::Failed { failure }));
            }
            State::Stopping { question, .. } => effects.push(answer(question, Answer::Done)),
            State::Running | State::Paused { .. } | State::Ended => {}
        }
        for question in questions.into_iter().filter_map(|waiting| waiting.question) {
            effects.push(answer(
                question,
                Answer::Failed {
                    failure: failure::ended(),
                },
            ));
        }
        let mut limit = None;
        for (exec, ended) in std::mem::take(&mut self.execs) {
            let exit = self.explain(
                &ended,
                Exit::Signal {
                    signal: libc::SIGKILL,
                },
            );
            if let Exit::Limit { limit: by } = exit {
                limit = Some(by);
            }
            effects.push(Effect::Exited(exec, exit));
        }
        effects.push(Effect::Ended(limit));
        effects
    }

    /// Ends what is over its time or its limits.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<Effect> {
        match self.state {
            State::Creating { until, .. } | State::Stopping { until, .. } if until <= now => {
                self.end_processes();
                return self.lost();
            }
            State::Ended | State::Paused { .. } => return Vec::new(),
            _ => {}
        }
        let late: Vec<ExecId> = self
            .execs
            .iter()
            .filter(|(_, exec)| exec.ending.is_none())
            .filter(|(_, exec)| exec.deadline.is_some_and(|deadline| deadline <= now))
            .map(|(exec, _)| *exec)
            .collect();
        for exec in late {
            self.end_exec(exec, Limit::Time);
        }
        if self.watch.next_check().is_some_and(|due| due <= now)
            && let Some(limit) = self.look(now)
        {
            self.end_all(limit);
        }
        // Nobody is left to take anything until the next command.
        self.used = !self.execs.is_empty() || self.watch.sees_commands();
        Vec::new()
    }

    /// Looks at what nobody else limits. Where it has no user namespace the
    /// kernel would count the processes of its user on the whole host.
    fn look(&mut self, now: Instant) -> Option<Limit> {
        let over = self.watch.check(now);
        let counted = self.counts_pids() || self.plan.engine.has_user_namespace();
        let many = !counted && self.watch.stats().pids > self.plan.limits.pids.saturating_add(1);
        over.or(many.then_some(Limit::Pids))
    }

    fn end_all(&mut self, limit: Limit) {
        if self.execs.is_empty() {
            let signal = Signal::KILL.as_raw();
            let _ = self.order(None, &Order::SignalAll { signal }, &[]);
        }
        let all: Vec<ExecId> = self.execs.keys().copied().collect();
        for exec in all {
            self.end_exec(exec, limit);
        }
    }

    /// Ends one command; its exit says why.
    pub(super) fn end_exec(&mut self, exec: ExecId, limit: Limit) {
        let alone = self.execs.len() == 1;
        let Some(ending) = self.execs.get_mut(&exec) else {
            return;
        };
        ending.ending.get_or_insert(limit);
        let signal = Signal::KILL.as_raw();
        // Alone, everything in the sandbox is its own: also what left its
        // session to live on.
        let order = if alone && !self.plan.without.lacks(Guard::KillTree) {
            Order::SignalAll { signal }
        } else {
            Order::Signal { exec, signal }
        };
        let _ = self.order(None, &order, &[]);
        if matches!(self.state, State::Paused { .. }) {
            let _ = self.thaw();
        }
    }

    fn order(
        &mut self,
        question: Option<u64>,
        order: &Order,
        descriptors: &[OwnedFd],
    ) -> Result<Option<Answer>, Failure> {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        protocol::send(&self.control, order, &descriptors).map_err(|_| failure::ended())?;
        let exec = match order {
            Order::Exec { exec, .. } => Some(*exec),
            _ => None,
        };
        self.waiting.push_back(Waiting { question, exec });
        Ok(None)
    }

    fn in_use(&self) -> Result<(), Failure> {
        match self.state {
            State::Running => Ok(()),
            State::Paused { .. } => Err(failure::refused("a command", "the sandbox is paused")),
            State::Creating { .. } => Err(failure::refused(
                "a command",
                "the sandbox is still being made",
            )),
            State::Stopping { .. } | State::Ended => Err(failure::ended()),
        }
    }

    /// Gives a warm sandbox its project. The rest was fixed at creation.
    pub(super) fn attach(&mut self, id: u64, plan: Plan) -> Result<Option<Answer>, Failure> {
        self.in_use()?;
        if plan.template != self.plan.template || plan.environment != self.plan.environment {
            let why = "only the project and its layer may differ from what was created";
            return Err(failure::refused("attaching it", why));
        }
        let order = Order::Attach {
            mounts: plan.late.clone(),
            directory: plan.directory.clone(),
            reach: plan.reach.clone(),
        };
        self.plan = plan;
        self.watch = Watch::new(&self.plan, self.group.as_ref(), self.pid);
        self.order(Some(id), &order, &[])
    }

    pub(super) fn exec(
        &mut self,
        id: u64,
        exec: ExecId,
        command: Command,
        streams: Vec<OwnedFd>,
    ) -> Result<Option<Answer>, Failure> {
        self.in_use()?;
        if self.execs.contains_key(&exec) {
            return Err(failure::refused("the command", "its number is in use"));
        }
        let most = match self.plan.limits.time {
            Lifetime::Total(span) => Some(Duration::from(span)),
            // Silence is counted by whoever reads the output.
            Lifetime::Owner | Lifetime::Silent(_) => None,
        };
        let asked = command.time.map(Duration::from);
        let time = match (most, asked) {
            (Some(most), Some(asked)) => Some(most.min(asked)),
            (most, asked) => most.or(asked),
        };
        self.watch.begin(Instant::now());
        let before = match (&self.group, self.ran) {
            (Some(group), true) => group.hits(),
            // Nothing has run that could have run into a limit.
            _ => Hits::default(),
        };
        (self.used, self.ran) = (true, true);
        self.execs.insert(
            exec,
            Exec {
                deadline: time.map(|time| Instant::now() + time),
                ending: None,
                before,
            },
        );
        let ordered = self.order(Some(id), &Order::Exec { exec, command }, &streams);
        if ordered.is_err() {
            self.execs.remove(&exec);
        }
        ordered
    }

    pub(super) fn signal(
        &mut self,
        id: u64,
        exec: ExecId,
        signal: i32,
    ) -> Result<Option<Answer>, Failure> {
        self.order(Some(id), &Order::Signal { exec, signal }, &[])
    }

    /// Ends whatever runs in it; it can be used again.
    pub(super) fn end_commands(&mut self, id: u64) -> Result<Option<Answer>, Failure> {
        self.in_use()?;
        let signal = Signal::KILL.as_raw();
        self.order(Some(id), &Order::SignalAll { signal }, &[])
    }

    pub(super) fn listen(&mut self, id: u64, port: u16) -> Result<Option<Answer>, Failure> {
        self.in_use()?;
        self.order(Some(id), &Order::Listen { port }, &[])
    }

    pub(super) fn pause(&mut self, id: u64) -> Result<Option<Answer>, Failure> {
        self.in_use()?;
        let since = Instant::now();
        self.state = State::Paused { since };
        match &self.group {
            Some(group) if group.freeze().is_ok() => Ok(Some(Answer::Done)),
            _ => {
                let signal = Signal::STOP.as_raw();
                self.order(Some(id), &Order::SignalAll { signal }, &[])
            }
        }
    }

    pub(super) fn resume(&mut self, id: u64) -> Result<Option<Answer>, Failure> {
        let State::Paused { since } = self.state else {
            return Err(failure::refused("resuming it", "the sandbox is not paused"));
        };
        self.state = State::Running;
        let stood = since.elapsed();
        for deadline in self
            .execs
            .values_mut()
            .filter_map(|exec| exec.deadline.as_mut())
        {
            *deadline += stood;
        }
        match self.thaw() {
            true => Ok(Some(Answer::Done)),
            false => {
                let signal = Signal::CONT.as_raw();
                self.order(Some(id), &Order::SignalAll { signal }, &[])
            }
        }
    }

    fn thaw(&self) -> bool {
        self.group
            .as_ref()
            .is_some_and(|group| group.thaw().is_ok())
    }

    pub(super) fn stats(&self) -> Result<Option<Answer>, Failure> {
        if self.state == State::Ended {
            return Err(failure::ended());
        }
        let stats = match &self.group {
            Some(group) if group.counts_all() => group.stats(Stats::default()),
            Some(group) => group.stats(self.watch.stats()),
            None => Ok(self.watch.stats()),
        };
        stats
            .map(|stats| Some(Answer::Stats { stats }))
            .map_err(|error| failure::system("read what it uses", &error))
    }

    /// Asks everything inside to end; what is left at the end of the grace is
    /// ended by [`tick`](Self::tick).
    pub(super) fn stop(&mut self, id: u64, grace: Duration) -> Result<Option<Answer>, Failure> {
        if self.state == State::Ended {
            return Ok(Some(Answer::Done));
        }
        if matches!(self.state, State::Paused { .. }) {
            self.thaw();
        }
        let signal = Signal::TERM.as_raw();
        self.order(None, &Order::SignalAll { signal }, &[])?;
        self.state = State::Stopping {
            until: Instant::now() + grace,
            question: id,
        };
        if self.execs.is_empty() {
            // Nothing was asked to end that could say that it has.
            self.end_processes();
        }
        Ok(None)
    }

    /// Ends init; the kernel ends its whole namespace with it.
    pub(super) fn end_processes(&mut self) {
        // A frozen process does not even die.
        self.thaw();
        let has_namespace =
            self.plan.engine.has_pid_namespace() && self.plan.without.has_pid_namespace();
        let keep = self.plan.without.lacks(Guard::KillTree);
        if !keep && let Some(group) = &self.group {
            let _ = group.kill();
        }
        if !keep && !has_namespace {
            // Nothing else ends them with their init.
            crate::tree::end_below(self.pid);
        }
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Ends it and removes what it left. Every step runs, whatever another did.
    pub(super) fn cleanup(mut self) -> Vec<Effect> {
        self.end_processes();
        // A zombie would keep the group: it has to be collected first.
        let _ = rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
        let effects = self.lost();
        if let Some(group) = self.group.take() {
            group.remove();
        }
        if let Some(scratch) = &self.plan.scratch {
            let _ = std::fs::remove_dir_all(scratch);
        }
        effects
            .into_iter()
            .filter(|effect| !matches!(effect, Effect::Ended(_)))
            .collect()
    }
}

/// Clones an init into new namespaces, with what is known before the fork.
fn clone_init<'a>(
    inner: OwnedFd,
    birth: impl FnOnce(OwnedFd, (u32, u32)) -> Birth<'a>,
) -> Result<(Pid, OwnedFd), Failure> {
    let ids = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let birth = birth(inner, ids);
    let namespaces = call::namespaces_without(birth.plan.without);
    match call::fork_into(namespaces, birth.group.and_then(Group::descriptor)) {
        Err(error) => Err(failure::native("make namespaces", &error)),
        Ok(Forked::Parent { pid, pidfd }) => Ok((pid, pidfd)),
        Ok(Forked::Child) => init::run_native(birth),
    }
}

/// Whether reading would not block.
fn readable(descriptor: &OwnedFd) -> bool {
    let mut polled = [rustix::event::PollFd::new(
        descriptor,
        rustix::event::PollFlags::IN,
    )];
    let at_once = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(rustix::event::poll(&mut polled, Some(&at_once)), Ok(ready) if ready > 0)
}
