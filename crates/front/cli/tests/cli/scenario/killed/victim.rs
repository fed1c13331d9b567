//! Whom of a session's processes a round kills.

use rustix::process::Pid;

use super::super::family::{Process, Role};

/// Whom a round kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Victim {
    /// The person's client.
    Client,
    /// The kernel.
    Kernel,
    /// The launcher of its sandboxes.
    Launcher,
    /// Its egress process, or the bootstrap of all.
    Beside,
    /// The worker that speaks with the model, in its sandbox.
    Model,
    /// Whatever else runs in a sandbox: a tool, a test runner, one test file.
    Tool,
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
            Self::Kernel => of(Role::Kernel).collect(),
            Self::Launcher => of(Role::Launcher).collect(),
            Self::Beside => of(Role::Egress).chain(of(Role::Bootstrap)).collect(),
            Self::Model => of(Role::Command).filter(is_model).collect(),
            Self::Tool => of(Role::Command).filter(is_tool).collect(),
        };
        let count = u64::try_from(fitting.len()).unwrap();
        let at = usize::try_from(choice.checked_rem(count)?).unwrap();
        Some(fitting.get(at)?.pid)
    }
}
