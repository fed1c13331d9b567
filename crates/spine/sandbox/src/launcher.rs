//! The launcher: one small process outside every sandbox that starts them all.
//!
//! Single-threaded and synchronous on purpose: it forks. It takes requests
//! from one client, derives each plan itself, and holds no secret, no ledger
//! and no network. Whoever takes over its client can start named templates on
//! the given paths and nothing more. When the client is gone it ends every
//! sandbox, removes what they left and exits; when it is killed, the kernel
//! ends them, and the next launcher sweeps. Next: `running` for one sandbox.

pub mod ownership;
mod running;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use fluffy_base::ByteSize;
use fluffy_base::id::SandboxId;
use fluffy_contract::isolation::SandboxSpec;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::cgroup::{Cgroups, Group};
use crate::failure;
use crate::guard::{Guard, Guards, THROWAWAY};
use crate::plan::{Host, Plan, Settings, refuse_links};
use crate::protocol::{self, Answer, Ask, Failure, Notice, Question, Reply, Warm};
use crate::seccomp::{Architecture, Filter};
use crate::template::{Lifetime, Profile};
use ownership::Ownership;
use running::{Effect, Running};

/// How often what dead launchers left is looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Serves one client until it is gone.
///
/// # Errors
/// When the client cannot be heard, or the state directory not be used.
pub fn serve(client: OwnedFd, weaken: Guards) -> io::Result<()> {
    if !weaken.is_empty() && !std::path::Path::new(THROWAWAY).exists() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "a guard can only be left out inside a sandbox made to be thrown away",
        ));
    }
    let Some((settings, _)) = protocol::receive::<Settings>(&client)? else {
        return Ok(());
    };
    let mut launcher = match Launcher::new(client.try_clone()?, settings, weaken) {
        Ok(launcher) => launcher,
        Err(error) => {
            let failure = failure::system("use the state directory", &error);
            protocol::send(&client, &Answer::Failed { failure }, &[])?;
            return Err(error);
        }
    };
    protocol::send(&client, &Answer::Done, &[])?;
    let served = launcher.run();
    launcher.end_everything();
    served
}

struct Launcher {
    client: OwnedFd,
    settings: Settings,
    host: Host,
    ownership: Ownership,
    cgroups: Cgroups,
    filters: BTreeMap<u8, Filter>,
    sandboxes: BTreeMap<SandboxId, Running>,
    swept: Instant,
    weaken: Guards,
}

impl Launcher {
    fn new(client: OwnedFd, settings: Settings, weaken: Guards) -> io::Result<Self> {
        let ownership = Ownership::take(&settings.state)?;
        let cgroups = Cgroups::find(ownership.label());
        Ok(Self {
            client,
            host: Host::probe(),
            ownership,
            cgroups,
            filters: BTreeMap::new(),
            sandboxes: BTreeMap::new(),
            swept: Instant::now(),
            settings,
            weaken,
        })
    }

    /// One turn for each wake-up: the client, an init, a deadline.
    fn run(&mut self) -> io::Result<()> {
        loop {
            let (client_asks, awake) = self.wait()?;
            let now = Instant::now();
            for sandbox in awake {
                let effects = match self.sandboxes.get_mut(&sandbox) {
                    Some(running) => running.hear(),
                    None => continue,
                };
                self.carry_out(sandbox, effects)?;
            }
            let due: Vec<SandboxId> = self
                .sandboxes
                .iter()
                .filter(|(_, running)| running.due().is_some_and(|due| due <= now))
                .map(|(sandbox, _)| *sandbox)
                .collect();
            for sandbox in due {
                let effects = match self.sandboxes.get_mut(&sandbox) {
                    Some(running) => running.tick(now),
                    None => continue,
                };
                self.carry_out(sandbox, effects)?;
            }
            if now.duration_since(self.swept) >= SWEEP_EVERY {
                self.sweep();
            }
            if client_asks {
                let Some((question, descriptors)) = protocol::receive::<Question>(&self.client)?
                else {
                    return Ok(());
                };
                self.answer(question, descriptors)?;
            }
        }
    }

    /// Waits until somebody speaks or a deadline passes.
    fn wait(&self) -> io::Result<(bool, Vec<SandboxId>)> {
        let mut polled = vec![PollFd::new(&self.client, PollFlags::IN)];
        let mut owners = Vec::new();
        for (sandbox, running) in &self.sandboxes {
            for descriptor in running.descriptors() {
                polled.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
                owners.push(*sandbox);
            }
        }
        let now = Instant::now();
        let next = self
            .sandboxes
            .values()
            .filter_map(Running::due)
            .chain([self.swept + SWEEP_EVERY])
            .min()
            .map_or(SWEEP_EVERY, |due| due.saturating_duration_since(now));
        // Rounded up, so that the deadline has passed on waking.
        let timeout = Timespec::try_from(next + Duration::from_millis(1)).ok();
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut flags = polled.iter().map(|polled| !polled.revents().is_empty());
        let client = flags.next().unwrap_or(false);
        let mut awake: Vec<SandboxId> = flags
            .zip(owners)
            .filter_map(|(ready, owner)| ready.then_some(owner))
            .collect();
        awake.dedup();
        Ok((client, awake))
    }

    fn reply(&self, id: u64, answer: Answer, descriptors: &[OwnedFd]) -> io::Result<()> {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        protocol::send(&self.client, &Reply::Answer { id, answer }, &descriptors)
    }

    fn carry_out(&mut self, sandbox: SandboxId, effects: Vec<Effect>) -> io::Result<()> {
        for effect in effects {
            match effect {
                Effect::Answer(id, answer, descriptors) => self.reply(id, answer, &descriptors)?,
                Effect::Exited(exec, exit) => {
                    let notice = Notice::Exited {
                        sandbox,
                        exec,
                        exit,
                    };
                    protocol::send(&self.client, &Reply::Notice { notice }, &[])?;
                }
                Effect::Ended(limit) => {
                    let notice = Notice::Ended { sandbox, limit };
                    protocol::send(&self.client, &Reply::Notice { notice }, &[])?;
                }
            }
        }
        Ok(())
    }

    fn answer(&mut self, question: Question, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let id = question.id;
        let answered = match question.ask {
            Ask::Create {
                sandbox,
                spec,
                warm,
            } => self.create(id, sandbox, &spec, warm),
            Ask::Sweep => {
                let removed = self.sweep();
                return self.reply(id, Answer::Swept { removed }, &[]);
            }
            Ask::Cleanup { sandbox } => {
                // Asked again, or for what never was: there is nothing left.
                if let Some(running) = self.sandboxes.remove(&sandbox) {
                    let effects = running.cleanup();
                    self.carry_out(sandbox, effects)?;
                    self.ownership.forget(sandbox);
                }
                return self.reply(id, Answer::Done, &[]);
            }
            Ask::Attach { sandbox, spec } => {
                let plan = self.plan(sandbox, &spec);
                self.with(sandbox, |running| running.attach(id, plan?))
            }
            Ask::Exec {
                sandbox,
                exec,
                command,
            } => self.with(sandbox, |running| {
                running.exec(id, exec, command, descriptors)
            }),
            Ask::Signal {
                sandbox,
                exec,
                signal,
            } => self.with(sandbox, |running| running.signal(id, exec, signal)),
            Ask::End {
                sandbox,
                exec,
                limit,
            } => self.with(sandbox, |running| {
                running.end_exec(exec, limit);
                Ok(Some(Answer::Done))
            }),
            Ask::EndAll { sandbox } => self.with(sandbox, |running| running.end_commands(id)),
            Ask::Listen { sandbox, port } => self.with(sandbox, |running| running.listen(id, port)),
            Ask::Pause { sandbox } => self.with(sandbox, |running| running.pause(id)),
            Ask::Resume { sandbox } => self.with(sandbox, |running| running.resume(id)),
            Ask::Stats { sandbox } => self.with(sandbox, |running| running.stats()),
            Ask::Stop {
                sandbox,
                grace_millis,
            } => {
                let grace = Duration::from_millis(grace_millis);
                self.with(sandbox, |running| running.stop(id, grace))
            }
            Ask::Kill { sandbox } => self.with(sandbox, |running| {
                running.end_processes();
                Ok(Some(Answer::Done))
            }),
        };
        match answered {
            Ok(None) => Ok(()),
            Ok(Some(answer)) => self.reply(id, answer, &[]),
            Err(failure) => self.reply(id, Answer::Failed { failure }, &[]),
        }
    }

    /// Asks one sandbox; an answer that must wait for its init comes later.
    fn with(
        &mut self,
        sandbox: SandboxId,
        ask: impl FnOnce(&mut Running) -> Result<Option<Answer>, Failure>,
    ) -> Result<Option<Answer>, Failure> {
        ask(self
            .sandboxes
            .get_mut(&sandbox)
            .ok_or_else(failure::ended)?)
    }

    fn plan(&self, sandbox: SandboxId, spec: &SandboxSpec) -> Result<Plan, Failure> {
        let mut plan = Plan::derive(sandbox, spec, &self.settings, &self.host)
            .map_err(|error| failure::plan(&error))?;
        refuse_links(spec).map_err(|error| failure::plan(&error))?;
        weaken(&mut plan, self.weaken);
        Ok(plan)
    }

    fn create(
        &mut self,
        question: u64,
        sandbox: SandboxId,
        spec: &SandboxSpec,
        warm: Warm,
    ) -> Result<Option<Answer>, Failure> {
        if self.sandboxes.contains_key(&sandbox) {
            return Err(failure::refused("creating it", "its id is in use"));
        }
        let mut plan = self.plan(sandbox, spec)?;
        let filter = self.filter(plan.seccomp)?;
        let group = self.cgroups.create(sandbox, &plan.limits);
        if group.as_ref().is_some_and(Group::limits_pids) {
            // The group is to be run into first: it tells that it was.
            plan.limits.user_pids = plan.limits.user_pids.saturating_add(1);
        }
        self.ownership
            .record(sandbox)
            .map_err(|error| failure::system("record the sandbox", &error))?;
        let made = Running::start(running::Start {
            plan,
            filter,
            group,
            anchor: self.ownership.anchor(),
            question,
            waiting: match warm {
                Warm::Complete => None,
                Warm::Waiting => Some(self.later()),
            },
        });
        match made {
            Ok(running) => {
                self.ownership.record_process(sandbox, running.process());
                self.sandboxes.insert(sandbox, running);
                Ok(None)
            }
            Err(failure) => {
                self.ownership.forget(sandbox);
                Err(failure)
            }
        }
    }

    /// The directories that everything attached later comes from.
    fn later(&self) -> Vec<std::path::PathBuf> {
        let layers = std::iter::once(&self.settings.layers);
        layers.chain(&self.settings.projects).cloned().collect()
    }

    /// Filters are compiled once for each profile.
    fn filter(&mut self, profile: Profile) -> Result<Filter, Failure> {
        // A fieldless enum: its discriminant is its key.
        let key = profile as u8;
        if let Some(filter) = self.filters.get(&key) {
            return Ok(filter.clone());
        }
        let filter = Filter::compile(profile, Architecture::native()).map_err(|error| {
            failure::system("compile the system-call filter", &io::Error::other(error))
        })?;
        self.filters.insert(key, filter.clone());
        Ok(filter)
    }

    fn sweep(&mut self) -> Vec<String> {
        self.swept = Instant::now();
        let mut removed = self.ownership.sweep();
        removed.extend(Cgroups::sweep(&|label: &str| {
            self.ownership.is_alive(label)
        }));
        removed
    }

    /// Every step runs, whatever another one did.
    fn end_everything(&mut self) {
        for (sandbox, running) in std::mem::take(&mut self.sandboxes) {
            running.cleanup();
            self.ownership.forget(sandbox);
        }
        self.ownership.release();
    }
}

/// Leaves guards out of a plan; those that are numbers are raised out of reach.
fn weaken(plan: &mut Plan, without: Guards) {
    const BEYOND: ByteSize = ByteSize(1 << 60);
    plan.without = without;
    let limits = &mut plan.limits;
    for (guard, size) in [
        (Guard::MemoryLimit, &mut limits.memory),
        (Guard::DiskLimit, &mut limits.disk),
        (Guard::FileSizeLimit, &mut limits.file_size),
    ] {
        if without.lacks(guard) {
            *size = BEYOND;
        }
    }
    if without.lacks(Guard::PidLimit) {
        limits.pids = u32::MAX;
    }
    if without.lacks(Guard::TimeLimit) {
        limits.time = Lifetime::Owner;
    }
    if without.lacks(Guard::EnvironmentScrub) {
        // What its client had and did not keep from it.
        let inherited = std::env::vars().filter(|(name, _)| !plan.environment.contains_key(name));
        let inherited: Vec<_> = inherited.collect();
        plan.environment.extend(inherited);
    }
}
