//! The first process of every sandbox: builds it, runs commands, reaps.
//!
//! It is cloned from the launcher on the native engine and started as
//! `fluffy worker sandbox-init` by the others; from [`serve`] on they are the
//! same. It obeys its launcher alone, through one socket, and ends when that
//! closes: with it every process of the sandbox ends. It never runs anything
//! that came from inside. Next: `exec` for how a command starts.

mod files;

use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use fluffy_contract::isolation::{Exit, Limit};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, WaitOptions};

use self::files::Files;
use crate::cgroup::Group;
use crate::exec::{self, Conditions, StartError};
use crate::failure;
use crate::guard::{Guard, Guards};
use crate::plan::{Engine, Mount, Plan, Reach};
use crate::protocol::{self, ExecId, Failure, Order, Report};
use crate::seccomp::{Architecture, Filter};
use crate::sys::linux::{call, mounts, privileges};
use crate::template::Network;
use crate::tree;
use crate::wall::Wall;

/// What a cloned init is given by its launcher, in memory.
pub(crate) struct Birth<'a> {
    /// What the sandbox is.
    pub(crate) plan: &'a Plan,
    /// The control group to be in before anything else.
    pub(crate) group: Option<&'a Group>,
    /// An empty directory of the host to build the root on.
    pub(crate) anchor: &'a Path,
    /// The launcher's own user and group.
    pub(crate) ids: (u32, u32),
    /// The compiled system-call filter.
    pub(crate) filter: Filter,
    /// Where the host has what comes later; nothing if all comes at once.
    pub(crate) waiting: Option<&'a [PathBuf]>,
    /// The socket to the launcher.
    pub(crate) control: OwnedFd,
}

/// Builds the sandbox around this process and serves it to the end.
pub(crate) fn run_native(birth: Birth<'_>) -> ! {
    // First, while the group's descriptors are still open: whatever follows
    // must be counted.
    let joined = birth.group.map_or(Ok(()), Group::join);
    let control = match keep_control(birth.control, birth.plan.without) {
        Ok(control) => control,
        Err(_) => call::exit_now(1),
    };
    let joined = joined.map_err(|error| failure::system("enter the control group", &error));
    let built = joined.and_then(|()| build(birth.plan, birth.anchor, birth.ids, birth.waiting));
    let bounded = built.and_then(|()| lower_bounds(birth.plan.without));
    let wall = bounded.and_then(|()| wall(birth.plan));
    let conditions = wall.map(|wall| conditions(birth.plan, birth.filter, wall));
    match conditions {
        Ok(conditions) => {
            let kind = match birth.waiting {
                Some(_) => Stage::Waiting,
                None => Stage::Complete,
            };
            let served = Init::new(control, conditions, kind).and_then(|mut init| init.serve());
            call::exit_now(i32::from(served.is_err()))
        }
        Err(failure) => {
            let _ = protocol::send(&control, &Report::Failed { failure }, &[]);
            call::exit_now(1)
        }
    }
}

/// Serves a sandbox that another engine has built around this process.
///
/// # Errors
/// When the launcher is gone or a guard cannot be had.
pub(crate) fn run_foreign(control: OwnedFd, plan: &Plan) -> io::Result<()> {
    let native = Architecture::native();
    let filter = match plan.engine {
        Engine::Reduced => Filter::compile_alone(plan.seccomp, native),
        Engine::Native | Engine::Bwrap | Engine::Container => Filter::compile(plan.seccomp, native),
    };
    let filter = filter.map_err(io::Error::other);
    let made = privileges::tie_to_parent()
        .and(privileges::adopt_orphans())
        .and(filter)
        .map_err(|error| failure::system("prepare the sandbox's init", &error))
        .and_then(|filter| {
            lower_bounds(plan.without)?;
            Ok(conditions(plan, filter, wall(plan)?))
        });
    match made {
        Ok(conditions) => {
            let mut init = Init::new(control, conditions, Stage::Complete)?;
            init.files = Files::of(plan);
            init.serve()
        }
        Err(failure) => {
            protocol::send(&control, &Report::Failed { failure }, &[])?;
            Err(io::Error::other("the sandbox could not be prepared"))
        }
    }
}

fn lower_bounds(without: Guards) -> Result<(), Failure> {
    privileges::lower_bounds(without)
        .map_err(|error| failure::system("give up what programs could gain", &error))
}

fn wall(plan: &Plan) -> Result<Wall, Failure> {
    let wall = match plan.engine {
        Engine::Reduced => Wall::prepare_alone(&plan.reach),
        Engine::Native | Engine::Bwrap | Engine::Container => Wall::prepare(&plan.reach),
    };
    wall.map_err(|error| failure::landlock(&error))
}

fn conditions(plan: &Plan, filter: Filter, wall: Wall) -> Conditions {
    Conditions {
        environment: plan.environment.clone(),
        directory: plan.directory.clone(),
        limits: plan.limits.clone(),
        filter,
        wall,
        engine: plan.engine,
        without: plan.without,
    }
}

/// Moves the socket to descriptor 3 and closes everything else: the launcher's
/// other descriptors belong to other sandboxes.
fn keep_control(control: OwnedFd, without: Guards) -> io::Result<OwnedFd> {
    let null = rustix::fs::open(
        "/dev/null",
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    drop(null);
    if without.lacks(Guard::DescriptorScrub) {
        return Ok(control);
    }
    call::only_descriptor(control)
}

/// Makes the sandbox: ids, names, mounts, network. Runs in new namespaces.
fn build(
    plan: &Plan,
    anchor: &Path,
    (uid, gid): (u32, u32),
    waiting: Option<&[PathBuf]>,
) -> Result<(), Failure> {
    let system = |step: &'static str| move |error: io::Error| failure::native(step, &error);
    privileges::map_ids(uid, gid).map_err(system("map the user"))?;
    privileges::tie_to_parent().map_err(system("tie it to the launcher"))?;
    if !plan.without.has_pid_namespace() {
        privileges::adopt_orphans().map_err(system("adopt orphans"))?;
    }
    if !plan.without.lacks(Guard::NewSession) {
        rustix::process::setsid()
            .map_err(io::Error::from)
            .map_err(system("lead a session"))?;
    }
    if !plan.without.lacks(Guard::SessionKeyring) {
        call::new_session_keyring().map_err(system("leave the session keyring"))?;
    }
    call::own_cgroup_namespace().map_err(system("hide the control groups"))?;
    match rustix::system::sethostname(b"sandbox") {
        // Rootless Podman's filter lets everything else through. The name of
        // the container stays, which guards nothing and tells little.
        Ok(()) | Err(rustix::io::Errno::PERM) => {}
        Err(error) => return Err(failure::native("set the host name", &error.into())),
    }
    if plan.network != Network::None && !plan.without.lacks(Guard::NetworkNamespace) {
        call::loopback_up().map_err(system("bring the loopback up"))?;
    }
    let mount = |error: mounts::MountError| failure::native(&error.step, &error.error);
    let keep = match waiting {
        // What is not there yet may be by then.
        Some(parts) if parts.iter().all(|part| part.is_dir()) => mounts::Keep::Parts(parts),
        _ => mounts::Keep::Whole,
    };
    mounts::build(anchor, &plan.mounts, keep, plan.without).map_err(mount)?;
    if waiting.is_some() {
        return Ok(());
    }
    mounts::attach(&plan.late, plan.without).map_err(mount)?;
    mounts::finish(plan.without).map_err(mount)
}

/// Whether the project is in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It comes with [`Order::Attach`].
    Waiting,
    /// It is; nothing can be mounted any more.
    Complete,
}

/// A sandbox that runs commands.
struct Init {
    control: OwnedFd,
    signals: OwnedFd,
    conditions: Conditions,
    stage: Stage,
    running: HashMap<Pid, ExecId>,
    files: Files,
    /// Why it ended all commands itself.
    ended: Option<Limit>,
}

impl Init {
    fn new(control: OwnedFd, conditions: Conditions, stage: Stage) -> io::Result<Self> {
        // Also for every command, which inherits it.
        call::reset_signals();
        Ok(Self {
            control,
            signals: call::signal_descriptor(&[libc::SIGCHLD])?,
            conditions,
            stage,
            running: HashMap::new(),
            files: Files::default(),
            ended: None,
        })
    }

    /// Obeys until the launcher closes the socket.
    fn serve(&mut self) -> io::Result<()> {
        self.report(&Report::Ready, None)?;
        loop {
            let mut polled = [
                PollFd::new(&self.control, PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
            ];
            let pause = self.files.pause().filter(|_| !self.running.is_empty());
            match rustix::event::poll(&mut polled, pause) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [control, signals] = polled;
            let (asked, died) = (!control.revents().is_empty(), !signals.revents().is_empty());
            if died {
                self.reap()?;
            }
            self.limit_files();
            if asked {
                let Some((order, descriptors)) = protocol::receive::<Order>(&self.control)? else {
                    return Ok(());
                };
                self.obey(order, descriptors)?;
            }
        }
    }

    /// Ends all commands that made more files than they may.
    fn limit_files(&mut self) {
        if self.running.is_empty() {
            self.ended = None;
        } else if self.files.are_too_many() {
            self.ended = Some(Limit::Disk);
            // What cannot be ended now is at the next look.
            let _ = signal_all(&self.conditions, libc::SIGKILL);
        }
    }

    fn report(&self, report: &Report, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        protocol::send(&self.control, report, descriptor.as_slice())
    }

    fn obey(&mut self, order: Order, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let done: Result<Option<OwnedFd>, Failure> = match order {
            Order::Attach {
                mounts,
                directory,
                reach,
            } => self.attach(&mounts, &reach).map(|()| {
                self.conditions.directory = directory;
                None
            }),
            // A project that could not be mounted must not look like one
            // that is empty.
            Order::Exec { .. } if self.stage == Stage::Waiting => Err(failure::refused(
                "a command",
                "the sandbox has not got its project",
            )),
            Order::Exec { exec, command } => {
                match exec::start(&self.conditions, &command, descriptors) {
                    Ok(started) => {
                        self.running.insert(started.pid, exec);
                        Ok(started.terminal)
                    }
                    Err(StartError::NotStarted(errno)) => {
                        // It was started as far as the caller can tell; its
                        // end says that there was no program.
                        self.report(&Report::Done, None)?;
                        let exit = Exit::NotStarted { errno };
                        return self.report(&Report::Exited { exec, exit }, None);
                    }
                    Err(StartError::Step(step, error)) => Err(failure::command(step, &error)),
                }
            }
            Order::Signal { exec, signal } => self.signal(exec, signal).map(|()| None),
            Order::SignalAll { signal } => signal_all(&self.conditions, signal).map(|()| None),
            // Without a network of its own it would open a door of the host.
            Order::Listen { .. } if !self.conditions.engine.has_network_namespace() => Err(
                failure::refused("a listener", "reduced isolation has no network"),
            ),
            Order::Listen { port } => TcpListener::bind(("127.0.0.1", port))
                .map(|listener| Some(OwnedFd::from(listener)))
                .map_err(|error| failure::system("listen on the sandbox's loopback", &error)),
        };
        match done {
            Ok(descriptor) => self.report(&Report::Done, descriptor.as_ref().map(AsFd::as_fd)),
            Err(failure) => self.report(&Report::Failed { failure }, None),
        }
    }

    fn attach(&mut self, mounts: &[Mount], reach: &Reach) -> Result<(), Failure> {
        if self.stage == Stage::Complete {
            return Err(failure::refused(
                "attaching a project",
                "the sandbox has one already",
            ));
        }
        let mount = |error: mounts::MountError| failure::native(&error.step, &error.error);
        let without = self.conditions.without;
        mounts::attach(mounts, without).map_err(mount)?;
        mounts::finish(without).map_err(mount)?;
        let places: Vec<&Path> = mounts.iter().filter_map(Mount::inside).collect();
        let extended = self.conditions.wall.extend(reach, &places);
        extended.map_err(|error| failure::landlock(&error))?;
        self.stage = Stage::Complete;
        Ok(())
    }

    fn signal(&self, exec: ExecId, signal: i32) -> Result<(), Failure> {
        let leader = self.running.iter().find(|(_, running)| **running == exec);
        // A command that has just ended needs no signal.
        let Some((leader, _)) = leader else {
            return Ok(());
        };
        let signal = known_signal(signal)?;
        match rustix::process::kill_process_group(*leader, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(failure::system("send a signal", &error.into())),
        }
    }

    /// Collects every process that ended; those nobody asked for are orphans
    /// of commands.
    fn reap(&mut self) -> io::Result<()> {
        // The descriptor only wakes; one read may stand for many children.
        let mut bytes = [0_u8; 1024];
        let _ = rustix::io::read(&self.signals, &mut bytes);
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let Some(exec) = self.running.remove(&pid) else {
                        continue;
                    };
                    let exit = match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => Exit::Code { code },
                        (None, Some(_)) if let Some(limit) = self.ended => Exit::Limit { limit },
                        (None, Some(signal)) => Exit::Signal { signal },
                        (None, None) => continue,
                    };
                    self.report(&Report::Exited { exec, exit }, None)?;
                }
                Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn known_signal(signal: i32) -> Result<Signal, Failure> {
    Signal::from_named_raw(signal)
        .ok_or_else(|| failure::refused("sending a signal", "there is no signal of that number"))
}

/// Reaches every process of the sandbox but this one.
fn signal_all(conditions: &Conditions, signal: i32) -> Result<(), Failure> {
    let signal = known_signal(signal)?;
    if !conditions.has_pid_namespace() {
        let own = rustix::process::getpid();
        match signal {
            Signal::KILL => tree::end_below(own),
            signal => {
                tree::signal_below(own, signal);
            }
        }
        return Ok(());
    }
    match call::signal_everyone(signal.as_raw()) {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
            Err(failure::system("send a signal", &error))
        }
        _ => Ok(()),
    }
}
