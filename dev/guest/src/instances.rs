//! Control groups of instances, on a kernel that has version 2 alone.
//!
//! Makes them as a shim does, puts bombs in, and says what the kernel did.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use fluffy_shim::cgroup::{Group, Limits};
use rustix::process::Pid;
use serde_json::{Value, json};

use crate::groups;
use crate::limits::{BUSY, MEMORY_BOMB, MIB, PROCESS_BOMB, tell};

const NAME: &str = "instances/one";
const TIGHT: Limits = Limits {
    memory_bytes: 24 * MIB,
    cpu_millis: 500,
    pids: 20,
};
const WIDE: Limits = Limits {
    memory_bytes: 400 * MIB,
    cpu_millis: 2_000,
    pids: 200,
};

/// Tries everything and says what it found, each as a line.
pub(crate) fn try_all() -> Result<()> {
    for (name, limits) in [("tight", TIGHT), ("wide", WIDE)] {
        let group = Group::named(NAME).context("cannot name a group")?;
        group.create(&limits).context("cannot make a group")?;
        let say = |case: &str, found| tell("instances", &format!("{name} {case}"), found);
        say("limits", shown(&group)?)?;
        say("busy", busy(&group)?)?;
        say("processes", bomb(&group, PROCESS_BOMB)?)?;
        say("memory", bomb(&group, MEMORY_BOMB)?)?;
        group.kill().context("cannot end what is left")?;
        group.remove().context("cannot remove a group")?;
        say("left", json!(group.exists()))?;
    }
    Ok(())
}

/// What the kernel has for it, past the code under test and by it.
fn shown(group: &Group) -> Result<Value> {
    let folder = Path::new("/sys/fs/cgroup").join(NAME);
    let files = [
        "memory.max",
        "memory.swap.max",
        "memory.oom.group",
        "pids.max",
        "cpu.weight",
    ];
    let limits = group.limits().context("cannot read limits")?;
    Ok(json!({
        "files": files.map(|file| groups::file(&folder, file)),
        "read": [limits.memory_bytes, limits.pids],
    }))
}

/// A shell that waits for a line, and does this once it is in the group.
fn inside(group: &Group, script: &str) -> Result<Child> {
    let mut child = Command::new("sh")
        .args(["-c", &format!("read go; {script}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start a shell")?;
    group
        .add(Pid::from_child(&child))
        .context("cannot add it")?;
    let mut input = child.stdin.take().context("it has no input")?;
    input.write_all(b"go\n").context("it does not listen")?;
    Ok(child)
}

/// How a bomb ended by itself, and what it had used by then.
fn bomb(group: &Group, script: &str) -> Result<Value> {
    let began = group.out_of_memory();
    let mut child = inside(group, script)?;
    let ended = child.wait().context("cannot wait for it")?;
    let usage = group.usage().context("cannot read what it uses")?;
    // What it started holds its output open.
    group.kill().context("cannot end what is left")?;
    let mut said = String::new();
    let mut output = child.stdout.take().context("it has no output")?;
    output
        .read_to_string(&mut said)
        .context("it says no text")?;
    Ok(json!({
        "fine": ended.success(),
        "said": said.trim(),
        "killed": group.out_of_memory() > began,
        "peak": usage.memory_peak_bytes,
        "processes": usage.processes,
    }))
}

/// One that uses a processor, which is counted; and all of it ends at once.
fn busy(group: &Group) -> Result<Value> {
    let mut child = inside(group, BUSY)?;
    let mut used = 0;
    while used < 50_000 {
        used = group.usage().context("cannot read what it uses")?.cpu_usec;
        std::thread::sleep(Duration::from_millis(5));
    }
    let first = group.first();
    group.kill().context("cannot end it")?;
    let ended = child.wait().context("cannot wait for it")?;
    Ok(json!({
        "first": first == Some(child.id()),
        "ended": !ended.success(),
        "left": group.processes().len(),
    }))
}
