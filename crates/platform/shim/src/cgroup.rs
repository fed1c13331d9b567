//! Control groups of instances: the same name below every hierarchy, version
//! 1 or 2, found per controller. Hierarchies that limit nothing are used too,
//! where they are what a supervisor such as systemd ends a service by.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// How long the processes of a group have to end once they are killed.
const KILL_WITHIN: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(2);

/// An instance's share of the disk.
const IO_WEIGHT: &str = "100";

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory of all processes together, in bytes.
    pub memory_bytes: u64,
    /// Thousandths of a processor, as a weight.
    pub cpu_millis: u64,
    /// Processes.
    pub pids: u32,
}

/// What is limited now; nothing where there is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InForce {
    /// Memory of all processes together, in bytes.
    pub memory_bytes: Option<u64>,
    /// Processes.
    pub pids: Option<u64>,
}

/// What is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory now, in bytes.
    pub memory_bytes: u64,
    /// The most memory ever, in bytes; 0 if the kernel does not tell.
    pub memory_peak_bytes: u64,
    /// Processor time ever, in microseconds.
    pub cpu_usec: u64,
    /// Processes now.
    pub processes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    at: PathBuf,
    controllers: BTreeSet<String>,
}

/// What a hierarchy without a controller is known by here: that of a service
/// manager in version 1, and any of version 2.
const TRACKING: [&str; 2] = ["name=systemd", "tree"];

impl Hierarchy {
    /// Whether it only says where a process belongs.
    fn only_tracks(&self) -> bool {
        let tracks = |name: &String| TRACKING.contains(&name.as_str());
        self.controllers.iter().all(tracks)
    }
}

/// The groups in which the shims of the instances below `parent` are.
#[must_use]
pub fn keepers_of(parent: &str) -> String {
    format!("{parent}-shims")
}

/// The group of the shim that holds the instance in `group`: beside it, so that
/// neither what ends the instance nor what ends the agent ends it.
#[must_use]
pub fn keeper_of(group: &str) -> String {
    let (parent, name) = group.rsplit_once('/').unwrap_or(("fluffy", group));
    format!("{}/{name}", keepers_of(parent))
}

/// One group, by its name below every hierarchy.
#[derive(Debug, Clone)]
pub struct Group {
    name: String,
    hierarchies: Vec<Hierarchy>,
}

impl Group {
    /// A group, there or not. Its name is made of ours alone.
    ///
    /// # Errors
    /// When this machine has no memory controller, or hides its mounts.
    pub fn named(name: &str) -> io::Result<Self> {
        let hierarchies = hierarchies(&fs::read_to_string("/proc/self/mountinfo")?);
        let group = Self {
            name: name.to_owned(),
            hierarchies,
        };
        for needed in ["memory", "pids"] {
            if group.part(needed).is_none() {
                let text = format!("this machine has no control group for {needed}");
                return Err(io::Error::other(text));
            }
        }
        Ok(group)
    }

    /// Makes it, empty, with these limits.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn create(&self, limits: &Limits) -> io::Result<()> {
        self.create_without_limits()?;
        let Limits {
            memory_bytes,
            cpu_millis,
            pids,
        } = limits;
        match self.needed("memory")? {
            (Version::Two, part) => {
                write(&part, "memory.max", &memory_bytes.to_string())?;
                write_if_there(&part, "memory.swap.max", "0")?;
                write_if_there(&part, "memory.oom.group", "1")?;
            }
            (Version::One, part) => {
                write(&part, "memory.limit_in_bytes", &memory_bytes.to_string())?;
                let both = "memory.memsw.limit_in_bytes";
                write_if_there(&part, both, &memory_bytes.to_string())?;
                write_if_there(&part, "memory.swappiness", "0")?;
            }
        }
        let (_, part) = self.needed("pids")?;
        write(&part, "pids.max", &pids.to_string())?;
        match self.part("cpu") {
            Some((Version::Two, part)) => {
                let weight = (cpu_millis / 10).clamp(1, 10_000);
                write_if_there(&part, "cpu.weight", &weight.to_string())?;
            }
            Some((Version::One, part)) => {
                let shares = (cpu_millis * 1_024 / 1_000).clamp(2, 262_144);
                write_if_there(&part, "cpu.shares", &shares.to_string())?;
            }
            None => {}
        }
        // Of the disk every instance has the same share.
        match (self.part("io"), self.part("blkio")) {
            (Some((Version::Two, part)), _) => write_if_there(&part, "io.weight", IO_WEIGHT),
            (_, Some((Version::One, part))) => write_if_there(&part, "blkio.weight", IO_WEIGHT),
            _ => Ok(()),
        }
    }

    /// Makes it, empty.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn create_without_limits(&self) -> io::Result<()> {
        for hierarchy in &self.hierarchies {
            match self.make(hierarchy) {
                // Another's, or not to be written to: then it is not left.
                Err(_) if hierarchy.only_tracks() => {}
                made => made?,
            }
        }
        Ok(())
    }

    fn make(&self, hierarchy: &Hierarchy) -> io::Result<()> {
        let mut at = hierarchy.at.clone();
        for piece in self.name.split('/') {
            if hierarchy.version == Version::Two {
                for controller in ["memory", "pids", "cpu"] {
                    if hierarchy.controllers.contains(controller) {
                        write(&at, "cgroup.subtree_control", &format!("+{controller}"))?;
                    }
                }
                // Not every kernel shares a disk out.
                if hierarchy.controllers.contains("io") {
                    let _ = write(&at, "cgroup.subtree_control", "+io");
                }
            }
            at.push(piece);
            match fs::create_dir(&at) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Puts a process into it.
    ///
    /// # Errors
    /// When it is gone or the kernel refuses.
    pub fn add(&self, process: Pid) -> io::Result<()> {
        for hierarchy in &self.hierarchies {
            let part = hierarchy.at.join(&self.name);
            let number = process.as_raw_nonzero().to_string();
            match write(&part, "cgroup.procs", &number) {
                Err(_) if hierarchy.only_tracks() => {}
                written => written?,
            }
        }
        Ok(())
    }

    /// Whether a process is in it.
    #[must_use]
    pub fn has(&self, process: u32) -> bool {
        let Some((_, part)) = self.part("pids") else {
            return false;
        };
        processes(&part).contains(&process)
    }

    /// The first of its processes.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        let (_, part) = self.part("pids")?;
        processes(&part).into_iter().min()
    }

    /// All its processes, the first first.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let found = self.part("pids").map(|(_, part)| processes(&part));
        let mut all = found.unwrap_or_default();
        all.sort_unstable();
        all
    }

    /// The limits that the kernel has for it.
    ///
    /// # Errors
    /// When it is gone.
    pub fn limits(&self) -> io::Result<InForce> {
        /// What version 1 says where there is none: nearly all that fits.
        const ENDLESS: u64 = 1 << 60;
        let (version, part) = self.needed("memory")?;
        let file = match version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        // `max` is no number.
        let text = fs::read_to_string(part.join(file))?;
        let memory_bytes = text.trim().parse().ok().filter(|it| *it < ENDLESS);
        let (_, part) = self.needed("pids")?;
        let text = fs::read_to_string(part.join("pids.max"))?;
        Ok(InForce {
            memory_bytes,
            pids: text.trim().parse().ok(),
        })
    }

    /// Whether it is there.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.parts().any(|part| part.exists())
    }

    /// Ends all its processes, and what they start meanwhile.
    ///
    /// # Errors
    /// When some are left.
    pub fn kill(&self) -> io::Result<()> {
        let by = Instant::now() + KILL_WITHIN;
        loop {
            let mut left = false;
            for part in self.parts() {
                let all = processes(&part);
                if all.is_empty() {
                    continue;
                }
                left = true;
                // Where it exists it reaches those that fork, too.
                if fs::write(part.join("cgroup.kill"), "1").is_ok() {
                    continue;
                }
                let all = all.into_iter().filter_map(|pid| i32::try_from(pid).ok());
                for pid in all.filter_map(Pid::from_raw) {
                    let _ = rustix::process::kill_process(pid, Signal::KILL);
                }
            }
            if !left {
                return Ok(());
            }
            if Instant::now() > by {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Removes it; all its processes are ended.
    ///
    /// # Errors
    /// When some are left.
    pub fn remove(&self) -> io::Result<()> {
        let by = Instant::now() + KILL_WITHIN;
        // Where nothing can be written, nothing was made.
        for part in self.parts().filter(|part| part.exists()) {
            loop {
                match fs::remove_dir(&part) {
                    Ok(()) => break,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    // Whoever ended is not yet collected.
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                        if Instant::now() > by {
                            return Err(error);
                        }
                        std::thread::sleep(PAUSE);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// How many of its processes the kernel ended for their memory.
    #[must_use]
    pub fn out_of_memory(&self) -> u64 {
        let Some((version, part)) = self.part("memory") else {
            return 0;
        };
        let file = match version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        field(&part, file, "oom_kill").unwrap_or(0)
    }

    /// What it uses.
    ///
    /// # Errors
    /// When it is gone.
    pub fn usage(&self) -> io::Result<Usage> {
        let (version, part) = self.needed("memory")?;
        let (now, most) = match version {
            Version::One => ("memory.usage_in_bytes", "memory.max_usage_in_bytes"),
            Version::Two => ("memory.current", "memory.peak"),
        };
        let mut usage = Usage {
            memory_bytes: number(&part, now)?,
            // Older kernels of version 2 do not count it.
            memory_peak_bytes: number(&part, most).unwrap_or(0),
            ..Usage::default()
        };
        let (_, part) = self.needed("pids")?;
        usage.processes = number(&part, "pids.current")?;
        usage.cpu_usec = match (self.part("cpuacct"), self.part("cpu")) {
            (Some((Version::One, part)), _) => number(&part, "cpuacct.usage")? / 1_000,
            (_, Some((Version::Two, part))) => field(&part, "cpu.stat", "usage_usec")?,
            _ => 0,
        };
        Ok(usage)
    }

    /// The names of the groups beside this one, below the same parent.
    #[must_use]
    pub fn siblings(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for part in self.parts() {
            let entries = part.parent().and_then(|parent| fs::read_dir(parent).ok());
            for entry in entries.into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    names.insert(entry.file_name().to_string_lossy().into_owned());
                }
            }
        }
        names
    }

    fn parts(&self) -> impl Iterator<Item = PathBuf> {
        self.hierarchies.iter().map(|one| one.at.join(&self.name))
    }

    fn part(&self, controller: &str) -> Option<(Version, PathBuf)> {
        let found = self
            .hierarchies
            .iter()
            .find(|one| one.controllers.contains(controller))?;
        Some((found.version, found.at.join(&self.name)))
    }

    fn needed(&self, controller: &str) -> io::Result<(Version, PathBuf)> {
        self.part(controller)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// The hierarchies that matter here, each once.
fn hierarchies(mounts: &str) -> Vec<Hierarchy> {
    const WANTED: [&str; 7] = ["memory", "pids", "cpu", "cpuacct", "freezer", "io", "blkio"];
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let (Some(root), Some(at)) = (left.split(' ').nth(3), left.split(' ').nth(4)) else {
            continue;
        };
        let mut right = right.split(' ');
        let (kind, options) = (right.next(), right.nth(1).unwrap_or_default());
        // A part of a hierarchy, or one at a place with odd characters, is
        // nothing that an agent made.
        if root != "/" || at.contains('\\') || found.iter().any(|one| one.at == Path::new(at)) {
            continue;
        }
        let at = PathBuf::from(at);
        let (version, controllers) = match kind {
            Some("cgroup2") => {
                let text = fs::read_to_string(at.join("cgroup.controllers")).unwrap_or_default();
                let all = text.split_ascii_whitespace().chain(["tree"]);
                (Version::Two, all.map(str::to_owned).collect())
            }
            Some("cgroup") => {
                let all: Vec<String> = options.split(',').map(str::to_owned).collect();
                (Version::One, all)
            }
            _ => continue,
        };
        let taken = |name: &String| found.iter().any(|one| one.controllers.contains(name));
        let controllers: BTreeSet<String> = controllers
            .into_iter()
            .filter(|name| WANTED.iter().chain(&TRACKING).any(|it| it == name) && !taken(name))
            .collect();
        if !controllers.is_empty() {
            found.push(Hierarchy {
                version,
                at,
                controllers,
            });
        }
    }
    found
}

fn processes(part: &Path) -> Vec<u32> {
    let text = fs::read_to_string(part.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn write(part: &Path, file: &str, text: &str) -> io::Result<()> {
    fs::write(part.join(file), text).map_err(|error| {
        let text = format!("{}: {error}", part.join(file).display());
        io::Error::new(error.kind(), text)
    })
}

fn write_if_there(part: &Path, file: &str, text: &str) -> io::Result<()> {
    if part.join(file).exists() {
        write(part, file, text)?;
    }
    Ok(())
}

fn number(part: &Path, file: &str) -> io::Result<u64> {
    let text = fs::read_to_string(part.join(file))?;
    text.trim().parse().map_err(io::Error::other)
}

fn field(part: &Path, file: &str, name: &str) -> io::Result<u64> {
    let text = fs::read_to_string(part.join(file))?;
    let found = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let found = found.ok_or(io::ErrorKind::NotFound)?;
    found.trim().parse().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_controller_is_found_once_in_whichever_version() {
        let mounts = "\
24 1 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
25 1 0:23 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
26 1 0:24 /part /elsewhere rw - cgroup cgroup rw,pids
27 1 0:25 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
28 1 0:22 / /again rw - cgroup cgroup rw,memory
29 1 0:26 / /proc rw - proc proc rw
nonsense";
        let found = hierarchies(mounts);
        let places: Vec<_> = found.iter().map(|one| one.at.to_str().unwrap()).collect();
        let all = [
            "/sys/fs/cgroup/memory",
            "/sys/fs/cgroup/cpu",
            "/sys/fs/cgroup/systemd",
        ];
        assert_eq!(places, all);
        assert_eq!(found[1].controllers.len(), 2);
        let tracking: Vec<bool> = found.iter().map(Hierarchy::only_tracks).collect();
        assert_eq!(tracking, [false, false, true]);
    }

    #[test]
    fn a_shim_is_beside_the_instances_and_never_among_them() {
        let keeper = keeper_of("fluffy/instances-abc/inst_1");
        assert_eq!(keeper, "fluffy/instances-abc-shims/inst_1");
        assert!(keeper.starts_with(&format!("{}/", keepers_of("fluffy/instances-abc"))));
    }
}
