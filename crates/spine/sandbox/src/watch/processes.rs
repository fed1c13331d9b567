//! What the processes of a sandbox use, from `/proc`, where no control group
//! counts it.
//!
//! The processes are init and everything below it: what loses its parent
//! becomes init's. Numbers of processes that end meanwhile are left out.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use fluffy_contract::isolation::Stats;
use rustix::process::Pid;

/// How many processes are looked at; no sandbox may have more.
const MOST_PROCESSES: usize = 16_384;

/// Init and all processes below it.
pub(crate) fn tree(init: Pid) -> Vec<i32> {
    let mut seen = BTreeSet::new();
    let mut waiting = vec![init.as_raw_nonzero().get()];
    while let Some(pid) = waiting.pop() {
        if seen.len() >= MOST_PROCESSES || !seen.insert(pid) {
            continue;
        }
        let threads = fs::read_dir(format!("/proc/{pid}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            waiting.extend(
                children
                    .split_whitespace()
                    .filter_map(|c| c.parse::<i32>().ok()),
            );
        }
    }
    seen.into_iter().collect()
}

/// Memory in bytes, quickly: what processes share counts for each of them.
pub(super) fn memory_at_most(processes: &[i32]) -> u64 {
    processes
        .iter()
        .filter_map(|pid| fields(&format!("/proc/{pid}/status"), &["RssAnon:", "RssShmem:"]))
        .fold(memory_files(processes), u64::saturating_add)
}

/// Memory in bytes, exactly: what is shared counts once. Slow.
pub(super) fn memory(processes: &[i32]) -> u64 {
    let of = |names: &[&str]| {
        processes
            .iter()
            .filter_map(|pid| {
                let exact = format!("/proc/{pid}/smaps_rollup");
                fields(&exact, names)
                    .or_else(|| fields(&format!("/proc/{pid}/status"), &["RssAnon:", "RssShmem:"]))
            })
            .fold(0, u64::saturating_add)
    };
    // A file in memory that is mapped is in both; one that is not, in one.
    of(&["Pss_Anon:", "SwapPss:"]).saturating_add(of(&["Pss_Shmem:"]).max(memory_files(processes)))
}

/// Files in memory without a name that these processes have open: nobody has
/// to map them for them to be there.
fn memory_files(processes: &[i32]) -> u64 {
    let mut seen = BTreeSet::new();
    let mut bytes = 0_u64;
    for pid in processes {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
        for descriptor in descriptors.into_iter().flatten().flatten() {
            let in_memory = fs::read_link(descriptor.path()).is_ok_and(|target| {
                target
                    .as_os_str()
                    .as_encoded_bytes()
                    .starts_with(b"/memfd:")
            });
            if !in_memory {
                continue;
            }
            let Ok(file) = fs::metadata(descriptor.path()) else {
                continue;
            };
            if seen.insert((file.dev(), file.ino())) {
                bytes = bytes.saturating_add(file.blocks().saturating_mul(512));
            }
        }
    }
    bytes
}

/// Everything that is counted without a group.
pub(super) fn stats(init: Pid) -> Stats {
    let processes = tree(init);
    let mut stats = Stats {
        memory: memory(&processes),
        ..Stats::default()
    };
    let tick_micros = 1_000_000 / rustix::param::clock_ticks_per_second().max(1);
    for pid in processes {
        let Some((ticks, threads)) = times(pid) else {
            continue;
        };
        stats.cpu_micros = stats.cpu_micros.saturating_add(ticks * tick_micros);
        stats.pids = stats.pids.saturating_add(threads);
    }
    stats
}

/// The sum of these lines, which are in kilobytes.
fn fields(file: &str, names: &[&str]) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let sum = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            names
                .contains(&name)
                .then(|| words.next()?.parse::<u64>().ok())?
        })
        .fold(0, u64::saturating_add);
    (!text.is_empty()).then_some(sum.saturating_mul(1_024))
}

/// Processor time of a process and its collected children, and its threads.
fn times(pid: i32) -> Option<(u64, u32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let ticks = fields
        .get(11..15)?
        .iter()
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Some((ticks, fields.get(17)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_tree_holds_children_of_children() {
        let mut child = Command::new("sh")
            .args(["-c", "sleep 60 & echo ready; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let pid = Pid::from_child(&child);
        let tree = tree(pid);
        assert_eq!(tree.len(), 2);
        for process in tree.iter().filter_map(|process| Pid::from_raw(*process)) {
            rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        }
        child.wait().unwrap();
        assert_eq!(super::tree(pid).len(), 1);
    }

    #[test]
    fn a_file_in_memory_counts_though_nobody_maps_it() {
        use std::io::Write;
        let own = [rustix::process::getpid().as_raw_nonzero().get()];
        let before = memory_files(&own);
        let file = rustix::fs::memfd_create("held", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = fs::File::from(file);
        file.write_all(&vec![1; 8 << 20]).unwrap();
        let twice = file.try_clone().unwrap();
        assert!(memory_files(&own) >= before + (8 << 20));
        assert!(memory_files(&own) < before + (12 << 20), "counted once");
        drop((file, twice));
    }

    #[test]
    fn this_process_uses_something() {
        let own = rustix::process::getpid();
        let stats = stats(own);
        assert!(stats.memory > 100_000, "{stats:?}");
        assert!(stats.pids >= 1);
        let held = vec![1_u8; 32 << 20];
        let processes = [own.as_raw_nonzero().get()];
        assert!(memory(&processes) > 32 << 20);
        assert!(memory_at_most(&processes) > 32 << 20);
        drop(held);
    }

    #[test]
    fn nobody_uses_nothing() {
        assert_eq!(memory(&[i32::MAX]), 0);
        assert_eq!(fields("/proc/self/none", &["x"]), None);
    }
}
