//! What the kernel counted for a container: ends for memory and for processes.
//!
//! Read from the container's control group, of either version, which its first
//! process names. Where it cannot be read nothing was counted. Only reads.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

/// Where the kernel keeps control groups.
const ROOT: &str = "/sys/fs/cgroup";

/// How often a limit was hit so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Hits {
    /// Processes that were ended for want of memory.
    pub(crate) memory: u64,
    /// Processes that were not started.
    pub(crate) pids: u64,
}

/// The files with the counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
}

impl Counters {
    /// Those of a container with this first process, where it has its own.
    pub(crate) fn of_container(id: &str, process: Pid) -> Self {
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", process.as_raw_pid()));
        Self::parse(&groups.unwrap_or_default(), id)
    }

    /// Whether somebody limits its memory.
    pub(crate) fn counts_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Whether somebody limits its processes.
    pub(crate) fn counts_processes(&self) -> bool {
        self.pids.is_some()
    }

    fn parse(groups: &str, id: &str) -> Self {
        let mut counters = Self::default();
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
                continue;
            };
            // Engines of ordinary users often make no group; then its processes
            // are in one that others are in too.
            if !group.contains(id) {
                continue;
            }
            let below = |folder: &str, file: &str| {
                let group = group.trim_start_matches('/');
                Some(Path::new(ROOT).join(folder).join(group).join(file))
            };
            for controller in controllers.split(',') {
                match controller {
                    "memory" => counters.memory = below("memory", "memory.oom_control"),
                    "pids" => counters.pids = below("pids", "pids.events"),
                    "" => {
                        // Version two, where a group of version one is not used.
                        counters.memory = counters.memory.or(below("", "memory.events"));
                        counters.pids = counters.pids.or(below("", "pids.events"));
                    }
                    _ => {}
                }
            }
        }
        counters
    }

    /// What was counted so far.
    pub(crate) fn read(&self) -> Hits {
        let value = |file: &Option<PathBuf>, name: &str| {
            let text = fs::read_to_string(file.as_ref()?).ok()?;
            count(&text, name)
        };
        Hits {
            memory: value(&self.memory, "oom_kill").unwrap_or(0),
            pids: value(&self.pids, "max").unwrap_or(0),
        }
    }
}

/// The number after a name, in lines of a name and a number.
fn count(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(key, _)| *key == name)
        .and_then(|(_, value)| value.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found() {
        let two = Counters::parse("0::/system.slice/docker-a1.scope\n", "a1");
        let folder = Path::new("/sys/fs/cgroup/system.slice/docker-a1.scope");
        assert_eq!(two.memory, Some(folder.join("memory.events")));
        assert_eq!(two.pids, Some(folder.join("pids.events")));
        let groups = "9:pids:/docker/a1\n4:cpu,cpuacct:/docker/a1\n3:memory:/docker/a1\n0::/\n";
        let one = Counters::parse(groups, "a1");
        let memory = "/sys/fs/cgroup/memory/docker/a1/memory.oom_control";
        assert_eq!(one.memory, Some(memory.into()));
        let pids = "/sys/fs/cgroup/pids/docker/a1/pids.events";
        assert_eq!(one.pids, Some(pids.into()));
        assert!(one.counts_memory() && one.counts_processes());
        // The group of others is not the container's.
        assert_eq!(Counters::parse(groups, "b2"), Counters::default());
        assert_eq!(Counters::parse("nonsense", "a1"), Counters::default());
        assert_eq!(Counters::default().read(), Hits::default());
    }

    #[test]
    fn a_count_is_read_by_its_whole_name() {
        let text = "oom 3\noom_kill 2\noom_kill_group 7\n";
        assert_eq!(count(text, "oom_kill"), Some(2));
        assert_eq!(count(text, "max"), None);
    }
}
