//! Limits that hold for all processes of a sandbox together: control groups.
//!
//! Works with version 1, version 2 and both, as root and where a part of the
//! tree was handed to a user; what the machine does not give is said in
//! [`Group::missing`], and `watch` takes its place. A group's name says who
//! made it, so that nothing orphaned stays. Next: `find` for where, `watch`.

mod find;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use fluffy_base::id::SandboxId;
use fluffy_contract::isolation::Stats;
use rustix::process::{Pid, Signal};

pub(crate) use self::find::Missing;
use self::find::{Controller, Found, Place, Version};
use crate::plan::Limits;

/// How often processes are ended again before a group counts as stuck.
const KILL_ROUNDS: usize = 1_000;

/// Of these, how many follow each other at once; then there is a pause.
const QUICK_ROUNDS: usize = 64;
const KILL_PAUSE: std::time::Duration = std::time::Duration::from_millis(1);
/// How many directories one sweep looks into.
const SWEEP_DIRECTORIES: usize = 2_048;

/// The control groups that this machine lets a launcher make.
#[derive(Debug)]
pub(crate) struct Cgroups {
    found: Found,
    prefix: String,
}

impl Cgroups {
    /// Looks for what can be used; `launcher` is the name of the maker.
    #[must_use]
    pub(crate) fn find(launcher: &str) -> Self {
        let found = find::places().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot look for control groups");
            Found::default()
        });
        Self {
            found,
            prefix: format!("{PREFIX}{launcher}.{}", Maker::own().name()),
        }
    }

    /// What cannot be held back here, and why.
    #[must_use]
    pub(crate) fn missing(&self) -> &[Missing] {
        &self.found.missing
    }

    /// Makes a group with these limits; nothing where no part of it can be.
    #[must_use]
    pub(crate) fn create(&self, sandbox: SandboxId, limits: &Limits) -> Option<Group> {
        let name = format!("{}-{sandbox}", self.prefix);
        let mut group = Group {
            parts: Vec::new(),
            missing: self.missing().iter().map(|m| m.purpose).collect(),
        };
        for place in &self.found.places {
            match Part::create(place, &name, limits) {
                Ok(part) => group.parts.push(part),
                Err(error) => {
                    tracing::warn!(%error, place = %place.directory.display(), "no control group");
                    let lost = place.controllers.iter().map(|one| one.purpose());
                    group.missing.extend(lost);
                }
            }
        }
        (!group.parts.is_empty()).then_some(group)
    }

    /// Ends and removes groups whose launcher is gone; says which. `is_alive`
    /// is asked by the launcher's name; a running process counts as alive too.
    #[must_use]
    pub(crate) fn sweep(is_alive: &dyn Fn(&str) -> bool) -> Vec<String> {
        let Ok(found) = find::places() else {
            return Vec::new();
        };
        let mut removed = Vec::new();
        for place in &found.places {
            for orphan in orphans(place, is_alive) {
                let part = Part {
                    version: place.version,
                    directory: orphan.clone(),
                    controllers: place.controllers.clone(),
                    join: None,
                };
                let _ = end_processes(std::slice::from_ref(&part));
                if fs::remove_dir(&orphan).is_ok() {
                    removed.push(format!("control group {}", orphan.display()));
                }
            }
        }
        removed
    }
}

/// How often a limit was run into.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Hits {
    /// Processes that were ended because memory was used up.
    pub(crate) memory: u64,
    /// Processes that were not started because there were too many.
    pub(crate) pids: u64,
}

/// The control groups of one sandbox.
#[derive(Debug)]
pub(crate) struct Group {
    parts: Vec<Part>,
    missing: Vec<&'static str>,
}

impl Group {
    /// What is not held back by this group.
    #[must_use]
    pub(crate) fn missing(&self) -> &[&'static str] {
        &self.missing
    }

    /// Whether memory of all processes together is limited.
    #[must_use]
    pub(crate) fn limits_memory(&self) -> bool {
        self.part(Controller::Memory).is_some()
    }

    /// Whether it counts memory, processor time and processes.
    #[must_use]
    pub(crate) fn counts_all(&self) -> bool {
        let all = [Controller::Memory, Controller::Usage, Controller::Pids];
        all.into_iter().all(|one| self.part(one).is_some())
    }

    /// Whether the number of processes is limited.
    #[must_use]
    pub(crate) fn limits_pids(&self) -> bool {
        self.part(Controller::Pids).is_some()
    }

    /// The directory into which `clone3` can put a new process at once, with
    /// version 2. Moving it afterwards costs milliseconds.
    #[must_use]
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let part = self.parts.iter().find(|p| p.version == Version::Two)?;
        part.join.as_ref().map(AsFd::as_fd)
    }

    /// Puts the calling process, which must have one thread only, into the
    /// parts of version 1. A thread that moves itself needs no lock over the
    /// whole machine, which is what makes [`add`](Self::add) slow. Allocates
    /// nothing; new namespaces do not matter.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn join(&self) -> io::Result<()> {
        let old = self.parts.iter().filter(|p| p.version == Version::One);
        for mut tasks in old.filter_map(|part| part.join.as_ref()) {
            tasks.write_all(b"0")?;
        }
        Ok(())
    }

    /// Puts a process with all its threads into the group. Slow: a sandbox
    /// joins by itself.
    ///
    /// # Errors
    /// When it is gone or the kernel refuses.
    #[cfg(test)]
    pub(crate) fn add(&self, process: Pid) -> io::Result<()> {
        for part in &self.parts {
            part.write("cgroup.procs", &process.as_raw_nonzero().to_string())?;
        }
        Ok(())
    }

    /// What all its processes use; what it does not count stays as given.
    ///
    /// # Errors
    /// When the group is gone.
    pub(crate) fn stats(&self, mut stats: Stats) -> io::Result<Stats> {
        if let Some(part) = self.part(Controller::Memory) {
            let (now, most) = match part.version {
                Version::One => ("memory.usage_in_bytes", "memory.max_usage_in_bytes"),
                Version::Two => ("memory.current", "memory.peak"),
            };
            stats.memory = part.number(now)?;
            // Older kernels of version 2 do not count it.
            stats.memory_peak = part.number(most).ok();
        }
        if let Some(part) = self.part(Controller::Usage) {
            stats.cpu_micros = match part.version {
                Version::One => part.number("cpuacct.usage")? / 1_000,
                Version::Two => part.field("cpu.stat", "usage_usec")?,
            };
        }
        if let Some(part) = self.part(Controller::Pids) {
            stats.pids = u32::try_from(part.number("pids.current")?).unwrap_or(u32::MAX);
        }
        Ok(stats)
    }

    /// How often its limits were run into so far.
    #[must_use]
    pub(crate) fn hits(&self) -> Hits {
        let count = |controller, old: &str, new: &str, field: &str| {
            let part = self.part(controller)?;
            let file = match part.version {
                Version::One => old,
                Version::Two => new,
            };
            part.field(file, field).ok()
        };
        let memory = count(
            Controller::Memory,
            "memory.oom_control",
            "memory.events",
            "oom_kill",
        );
        let pids = count(Controller::Pids, "pids.events", "pids.events", "max");
        Hits {
            memory: memory.unwrap_or(0),
            pids: pids.unwrap_or(0),
        }
    }

    /// Stops all its processes where they are.
    ///
    /// # Errors
    /// When the machine cannot do it; signals can.
    pub(crate) fn freeze(&self) -> io::Result<()> {
        freezer(&self.parts)?.set_frozen(Frozen::Yes)
    }

    /// Lets them go on.
    ///
    /// # Errors
    /// When the machine cannot do it.
    pub(crate) fn thaw(&self) -> io::Result<()> {
        freezer(&self.parts)?.set_frozen(Frozen::No)
    }

    /// Ends all its processes, and what they start meanwhile.
    ///
    /// # Errors
    /// When some are left.
    pub(crate) fn kill(&self) -> io::Result<()> {
        end_processes(&self.parts)
    }

    /// Removes the group. All its processes must be ended and collected.
    pub(crate) fn remove(self) {
        for part in &self.parts {
            if let Err(error) = fs::remove_dir(&part.directory)
                && error.kind() != io::ErrorKind::NotFound
            {
                // The next launcher's sweep finds it by its name.
                tracing::warn!(%error, group = %part.directory.display(), "control group stays");
            }
        }
    }

    fn part(&self, controller: Controller) -> Option<&Part> {
        self.parts
            .iter()
            .find(|part| part.controllers.contains(&controller))
    }
}

/// A group's directory in one tree.
#[derive(Debug)]
struct Part {
    version: Version,
    directory: PathBuf,
    controllers: Vec<Controller>,
    /// What a process gets into it with: `tasks`, or the directory itself.
    join: Option<File>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frozen {
    Yes,
    No,
}

impl Part {
    fn create(place: &Place, name: &str, limits: &Limits) -> io::Result<Self> {
        let directory = place.directory.join(name);
        fs::create_dir(&directory)?;
        let mut part = Self {
            version: place.version,
            directory,
            controllers: place.controllers.clone(),
            join: None,
        };
        let made = part
            .check_kind()
            .and_then(|()| part.open_join())
            .and_then(|()| part.limit(limits));
        match made {
            Ok(()) => Ok(part),
            Err(error) => {
                let _ = fs::remove_dir(&part.directory);
                Err(error)
            }
        }
    }

    /// Below a directory that limits threads one by one, a group of version 2
    /// takes no process.
    fn check_kind(&self) -> io::Result<()> {
        match fs::read_to_string(self.directory.join("cgroup.type")) {
            Ok(kind) if self.version == Version::Two && kind.trim() != "domain" => {
                Err(io::ErrorKind::Unsupported.into())
            }
            _ => Ok(()),
        }
    }

    fn open_join(&mut self) -> io::Result<()> {
        self.join = Some(match self.version {
            Version::One => File::options()
                .write(true)
                .open(self.directory.join("tasks"))?,
            Version::Two => File::open(&self.directory)?,
        });
        Ok(())
    }

    fn limit(&self, limits: &Limits) -> io::Result<()> {
        for controller in &self.controllers {
            match (controller, self.version) {
                (Controller::Memory, Version::One) => {
                    let memory = limits.memory.0.to_string();
                    self.write("memory.limit_in_bytes", &memory)?;
                    self.write_if_there("memory.memsw.limit_in_bytes", &memory)?;
                }
                (Controller::Memory, Version::Two) => {
                    self.write("memory.max", &limits.memory.0.to_string())?;
                    self.write_if_there("memory.swap.max", "0")?;
                }
                (Controller::Pids, _) => {
                    // One more for the sandbox's own init.
                    let pids = u64::from(limits.pids) + 1;
                    self.write("pids.max", &pids.to_string())?;
                }
                (Controller::Cpu, version) => self.limit_cpu(version, limits.cpu_milli)?,
                (Controller::Usage | Controller::Freezer, _) => {}
            }
        }
        Ok(())
    }

    fn limit_cpu(&self, version: Version, milli: Option<u32>) -> io::Result<()> {
        const PERIOD_MICROS: u64 = 100_000;
        // The kernel accepts nothing under a millisecond.
        const LEAST_MICROS: u64 = 1_000;
        let Some(milli) = milli else {
            return Ok(());
        };
        let quota = (u64::from(milli) * PERIOD_MICROS / 1_000).max(LEAST_MICROS);
        match version {
            Version::One => {
                self.write("cpu.cfs_period_us", &PERIOD_MICROS.to_string())?;
                self.write("cpu.cfs_quota_us", &quota.to_string())
            }
            Version::Two => self.write("cpu.max", &format!("{quota} {PERIOD_MICROS}")),
        }
    }

    fn set_frozen(&self, frozen: Frozen) -> io::Result<()> {
        match (self.version, frozen) {
            (Version::One, Frozen::Yes) => self.write("freezer.state", "FROZEN"),
            (Version::One, Frozen::No) => self.write("freezer.state", "THAWED"),
            (Version::Two, Frozen::Yes) => self.write("cgroup.freeze", "1"),
            (Version::Two, Frozen::No) => self.write("cgroup.freeze", "0"),
        }
    }

    /// They were told to end; until they have, the group cannot be removed.
    fn wait_until_empty(&self) -> io::Result<()> {
        for round in 0..KILL_ROUNDS {
            if self.field("cgroup.events", "populated")? == 0 {
                return Ok(());
            }
            pause(round);
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    fn processes(&self) -> io::Result<Vec<Pid>> {
        let text = fs::read_to_string(self.directory.join("cgroup.procs"))?;
        // Those of other namespaces are nought, and nobody's to end.
        Ok(text
            .lines()
            .filter_map(|line| Pid::from_raw(line.parse().ok()?))
            .collect())
    }

    /// Never makes a file: in a directory that is none of the kernel's, that
    /// would look like a limit.
    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        File::options()
            .write(true)
            .open(self.directory.join(file))?
            .write_all(text.as_bytes())
    }

    fn write_if_there(&self, file: &str, text: &str) -> io::Result<()> {
        match self.write(file, text) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    fn number(&self, file: &str) -> io::Result<u64> {
        let text = fs::read_to_string(self.directory.join(file))?;
        text.trim()
            .parse()
            .map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// A number from lines of names and numbers.
    fn field(&self, file: &str, name: &str) -> io::Result<u64> {
        let text = fs::read_to_string(self.directory.join(file))?;
        text.lines()
            .filter_map(|line| line.split_once(' '))
            .find(|(found, _)| *found == name)
            .and_then(|(_, number)| number.trim().parse().ok())
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

fn freezer(parts: &[Part]) -> io::Result<&Part> {
    parts
        .iter()
        .find(|part| part.controllers.contains(&Controller::Freezer))
        .ok_or_else(|| io::ErrorKind::Unsupported.into())
}

fn end_processes(parts: &[Part]) -> io::Result<()> {
    let Some(part) = parts.first() else {
        return Ok(());
    };
    if part.version == Version::Two && part.write("cgroup.kill", "1").is_ok() {
        return part.wait_until_empty();
    }
    // Frozen, they start nothing while they are counted; they die when thawed.
    let frozen = freezer(parts).ok();
    for round in 0..KILL_ROUNDS {
        if let Some(part) = frozen {
            let _ = part.set_frozen(Frozen::Yes);
        }
        let processes = part.processes();
        for process in processes.iter().flatten() {
            let _ = rustix::process::kill_process(*process, Signal::KILL);
        }
        if let Some(part) = frozen {
            let _ = part.set_frozen(Frozen::No);
        }
        match processes {
            Ok(none) if none.is_empty() => return Ok(()),
            Ok(some) if only_dead(&some) => return Ok(()),
            Ok(_) => pause(round),
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// One that gives much memory back takes its time to die.
fn pause(round: usize) {
    match round < QUICK_ROUNDS {
        true => std::thread::yield_now(),
        false => std::thread::sleep(KILL_PAUSE),
    }
}

/// Whether all are ended and wait only to be collected.
fn only_dead(processes: &[Pid]) -> bool {
    processes.iter().all(|process| {
        process_fields(process.as_raw_nonzero().get())
            .is_none_or(|fields| fields.first().is_some_and(|state| state == "Z"))
    })
}

/// The fields of a process's `stat` after its name, the state first.
fn process_fields(pid: i32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, brackets too, but no field after it does.
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.split(' ').map(str::to_owned).collect())
}

const PREFIX: &str = "fluffy-";

/// Who made a group: a process, known by more than its number.
#[derive(Debug, PartialEq, Eq)]
struct Maker {
    namespace: String,
    pid: i32,
    started: String,
}

impl Maker {
    fn own() -> Self {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Self {
            namespace: own_namespace(),
            pid,
            started: started(pid).unwrap_or_default(),
        }
    }

    fn name(&self) -> String {
        format!("{}.{}.{}", self.namespace, self.pid, self.started)
    }

    /// Whether it may still live. Of another namespace nobody here knows.
    fn may_live(&self) -> bool {
        self.namespace != own_namespace() || started(self.pid).as_ref() == Some(&self.started)
    }
}

fn own_namespace() -> String {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.to_string_lossy()
        .chars()
        .filter(char::is_ascii_digit)
        .collect()
}

/// When a process started, in the kernel's ticks.
fn started(pid: i32) -> Option<String> {
    process_fields(pid)?.get(19).cloned()
}

/// The launcher's name and process of a group, from the group's name.
fn read_name(name: &str) -> Option<(&str, Maker)> {
    let (maker, sandbox) = name.strip_prefix(PREFIX)?.rsplit_once('-')?;
    sandbox.parse::<SandboxId>().ok()?;
    let mut parts = maker.rsplitn(4, '.');
    let started = parts.next()?.to_owned();
    let pid = parts.next()?.parse().ok()?;
    let namespace = parts.next()?.to_owned();
    let launcher = parts.next()?;
    Some((
        launcher,
        Maker {
            namespace,
            pid,
            started,
        },
    ))
}

/// Groups of launchers that are gone. An earlier launcher may have been started
/// elsewhere in the tree, so neighbours are looked into as well.
fn orphans(place: &Place, is_alive: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut left = SWEEP_DIRECTORIES;
    let mut found = Vec::new();
    let mut look = |directory: &Path| -> Vec<PathBuf> {
        if left == 0 {
            return Vec::new();
        }
        left -= 1;
        let mut others = Vec::new();
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name();
            match name.to_str().and_then(read_name) {
                Some((launcher, maker)) => {
                    if !is_alive(launcher) && !maker.may_live() {
                        found.push(entry.path());
                    }
                }
                None => others.push(entry.path()),
            }
        }
        others
    };
    let is_group = |directory: &Path| directory.join("cgroup.procs").exists();
    let mut above = Some(place.directory.as_path());
    while let Some(directory) = above.filter(|directory| is_group(directory)) {
        for neighbour in look(directory) {
            if neighbour != place.directory {
                look(&neighbour);
            }
        }
        above = directory.parent();
    }
    found
}

#[cfg(test)]
mod tests;
