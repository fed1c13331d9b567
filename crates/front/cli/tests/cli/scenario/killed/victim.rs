//! The processes of a session, and whom of them a round kills.

use std::path::Path;

use rustix::process::Pid;

use super::super::stage::Stage;
use crate::agent::socket;

/// Whom a round kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Victim {
    /// The person's client.
    Client,
    /// The kernel, its launcher, its egress process, or the bootstrap of all.
    Kernel,
    /// The worker that speaks with the model, in its sandbox.
    Model,
    /// Whatever else runs in a sandbox: a tool, a test runner, one test file.
    Tool,
}

/// One process, known by more than its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pid: i32,
    started: String,
    line: String,
    role: Role,
}

/// What a process is to its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Bootstrap,
    Kernel,
    Egress,
    Launcher,
    Init,
    Command,
}

impl Victim {
    /// The one to kill among these, if any of them fits.
    pub(super) fn choose(self, family: &[Process], client: Pid, choice: u64) -> Option<Pid> {
        let of = |role: Role| family.iter().filter(move |one| one.role == role);
        let is_model = |one: &&Process| one.line.contains("worker\0model");
        // Cloned from the launcher, and not yet what it will be.
        let is_new = |one: &&Process| one.line.contains("worker\0launcher");
        let is_tool = |one: &&Process| !is_model(one) && !is_new(one);
        let fitting: Vec<&Process> = match self {
            Self::Client => return Some(client),
            Self::Kernel => {
                let ours = [Role::Kernel, Role::Launcher, Role::Egress, Role::Bootstrap];
                ours.into_iter().flat_map(of).collect()
            }
            Self::Model => of(Role::Command).filter(is_model).collect(),
            Self::Tool => of(Role::Command).filter(is_tool).collect(),
        };
        let count = u64::try_from(fitting.len()).unwrap();
        let at = usize::try_from(choice.checked_rem(count)?).unwrap();
        Pid::from_raw(fitting.get(at)?.pid)
    }
}

/// The bootstrap of this project's kernel and all that it started.
pub(super) fn family(stage: &Stage) -> Vec<Process> {
    let socket = socket(&stage.site).to_string_lossy().into_owned();
    let all: Vec<(i32, i32, String, String)> = all().collect();
    let bootstrap = all
        .iter()
        .find(|(.., line)| line.contains("worker\0bootstrap") && line.contains(&socket));
    let Some((pid, _, started, line)) = bootstrap else {
        return Vec::new();
    };
    let mut family = vec![Process {
        pid: *pid,
        started: started.clone(),
        line: line.clone(),
        role: Role::Bootstrap,
    }];
    let mut at = 0;
    while let Some(above) = family.get(at).cloned() {
        at += 1;
        for (pid, _, started, line) in all.iter().filter(|(_, parent, ..)| *parent == above.pid) {
            let role = match above.role {
                Role::Bootstrap if line.contains("worker\0launcher") => Role::Launcher,
                Role::Bootstrap => Role::Kernel,
                Role::Kernel if line.contains("worker\0egress") => Role::Egress,
                // Nothing else of the kernel's own runs what came from outside.
                Role::Kernel | Role::Egress => continue,
                Role::Launcher => Role::Init,
                Role::Init | Role::Command => Role::Command,
            };
            family.push(Process {
                pid: *pid,
                started: started.clone(),
                line: line.clone(),
                role,
            });
        }
    }
    family
}

/// Whether it still runs; one that only waits to be collected does not.
pub(super) fn alive(process: &Process) -> bool {
    let folder = format!("/proc/{}", process.pid);
    stat(Path::new(&folder))
        .is_some_and(|stat| stat.started == process.started && stat.state != "Z")
}

/// Number, parent, start and command line of every process.
fn all() -> impl Iterator<Item = (i32, i32, String, String)> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = stat(&entry.path())?;
        let line = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        (stat.state != "Z").then_some((pid, stat.parent, stat.started, line))
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
