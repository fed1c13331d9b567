//! The processes of a session: its bootstrap and all that it started.

use std::path::Path;

use rustix::process::Pid;

use super::stage::Stage;
use crate::agent::socket;

/// One process, known by more than its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: Pid,
    started: String,
    /// Its words, each with a zero after it.
    pub(super) line: String,
    pub(super) role: Role,
}

/// What a process is to its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Bootstrap,
    Kernel,
    Egress,
    Launcher,
    Init,
    Command,
}

/// All of them, each with what it is to the session; none before it runs.
pub(super) fn family(stage: &Stage) -> Vec<Process> {
    let socket = socket(&stage.site).to_string_lossy().into_owned();
    let all: Vec<Found> = all().collect();
    let bootstrap = all
        .iter()
        .find(|one| one.line.contains("worker\0bootstrap") && one.line.contains(&socket));
    let Some(bootstrap) = bootstrap else {
        return Vec::new();
    };
    let mut family = vec![bootstrap.become_one(Role::Bootstrap)];
    let mut at = 0;
    while let Some(above) = family.get(at).cloned() {
        at += 1;
        let number = above.pid.as_raw_nonzero().get();
        for one in all.iter().filter(|one| one.stat.parent == number) {
            let role = match above.role {
                Role::Bootstrap if one.line.contains("worker\0launcher") => Role::Launcher,
                Role::Bootstrap => Role::Kernel,
                Role::Kernel if one.line.contains("worker\0egress") => Role::Egress,
                // Nothing else of the kernel's own runs what came from outside.
                Role::Kernel | Role::Egress => continue,
                Role::Launcher => Role::Init,
                Role::Init | Role::Command => Role::Command,
            };
            family.push(one.become_one(role));
        }
    }
    family
}

/// The first of this role.
pub(super) fn the(role: Role, stage: &Stage) -> Option<Pid> {
    let family = family(stage);
    let found = family.iter().find(|one| one.role == role);
    found.map(|one| one.pid)
}

/// Whether it still runs; one that only waits to be collected does not.
pub(super) fn alive(process: &Process) -> bool {
    let folder = format!("/proc/{}", process.pid.as_raw_nonzero());
    stat(Path::new(&folder))
        .is_some_and(|stat| stat.started == process.started && stat.state != "Z")
}

/// The words of every process of this machine.
pub(super) fn lines() -> impl Iterator<Item = String> {
    all().map(|one| one.line)
}

/// A process of whomever.
struct Found {
    pid: Pid,
    stat: Stat,
    line: String,
}

impl Found {
    fn become_one(&self, role: Role) -> Process {
        Process {
            pid: self.pid,
            started: self.stat.started.clone(),
            line: self.line.clone(),
            role,
        }
    }
}

fn all() -> impl Iterator<Item = Found> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok();
        let pid = pid.and_then(Pid::from_raw)?;
        let stat = stat(&entry.path())?;
        let line = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        (stat.state != "Z").then_some(Found { pid, stat, line })
    })
}

struct Stat {
    state: String,
    parent: i32,
    started: String,
}

fn stat(folder: &Path) -> Option<Stat> {
    let text = std::fs::read_to_string(folder.join("stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    Some(Stat {
        state: (*fields.first()?).to_owned(),
        parent: fields.get(1)?.parse().ok()?,
        started: (*fields.get(19)?).to_owned(),
    })
}
