//! What is still there once a sandbox says that it is gone.
//!
//! Processes are known by the nonce in their arguments, which only the
//! attack's own processes carry. Whatever is found is ended and removed, so
//! that a failing guard leaves nothing on the machine.

use std::ffi::CString;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::ground::contains;
use crate::sys::{memory, process};

/// How long a process may take to disappear.
const GRACE: Duration = Duration::from_secs(2);

/// How many looks must find nothing: one can miss what forks meanwhile.
const QUIET_LOOKS: u32 = 3;

/// How many are ended before giving up on something that cannot be caught.
const MOST_ENDED: usize = 20_000;

/// Everything that outlived its sandbox, for people.
pub(crate) fn remains(nonce: &str, unique: &str) -> Vec<String> {
    let mut found = Vec::new();
    let survivors = wait_for_the_end(nonce);
    if let Some(first) = survivors.first() {
        found.push(format!("{} processes (one is {first})", survivors.len()));
    }
    for folder in ["/tmp", "/dev/shm", "/var/tmp"] {
        let path = Path::new(folder).join(unique);
        if fs::symlink_metadata(&path).is_ok() {
            found.push(format!("`{}`", path.display()));
            let _removed = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
    }
    if let Some(segment) = memory::find_segment(segment_key(nonce)) {
        memory::remove_segment(segment);
        found.push("a shared segment".to_owned());
    }
    if CString::new(format!("/{unique}")).is_ok_and(|name| memory::remove_queue(&name)) {
        found.push("a message queue".to_owned());
    }
    found
}

/// The key under which an attack leaves a segment.
pub(crate) fn segment_key(nonce: &str) -> i32 {
    let digits = nonce.get(..7).unwrap_or("1");
    // Never zero: that is IPC_PRIVATE.
    i32::from_str_radix(digits, 16).unwrap_or(1).max(1)
}

/// Whether a process is stopped or traced, a signal waits for it, or its limits
/// were lowered.
pub(crate) fn is_hampered(victim: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{victim}/status")).unwrap_or_default();
    let limits = fs::read_to_string(format!("/proc/{victim}/limits")).unwrap_or_default();
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
    let stopped = field("State:").is_some_and(|state| state.trim().starts_with(['T', 't']));
    let traced = field("TracerPid:").is_some_and(|tracer| tracer.trim() != "0");
    let waits = |name| field(name).is_some_and(|set| set.trim().contains(|c| c != '0'));
    let lowered = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .is_some_and(|rest| rest.split_whitespace().next() == Some("16"));
    stopped || traced || waits("SigPnd:") || waits("ShdPnd:") || lowered
}

/// Waits until nothing of the attack runs; ends and returns what still does.
fn wait_for_the_end(nonce: &str) -> Vec<i32> {
    let deadline = Instant::now() + GRACE;
    let mut survivors = Vec::new();
    let mut quiet = 0;
    while quiet < QUIET_LOOKS && survivors.len() < MOST_ENDED {
        let found = processes_with(nonce);
        quiet = if found.is_empty() { quiet + 1 } else { 0 };
        if Instant::now() >= deadline {
            for &survivor in &found {
                // Gone by itself is as good.
                let _ended = process::signal(survivor, libc::SIGKILL);
            }
            survivors.extend(found);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    survivors
}

/// The processes that have the nonce in their arguments; zombies have none.
fn processes_with(nonce: &str) -> Vec<i32> {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&number: &i32| number != own)
        .filter(|number| {
            let arguments = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            contains(&arguments, nonce.as_bytes())
        })
        .collect()
}
