//! Attaches to a process of the host as a debugger.
//!
//! Lets go at once.

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack = Attack::new(
    "trace-host",
    Family::Privilege,
    Guard::UserNamespace,
    attempt,
)
.gains("takes over a process outside as its debugger")
.also_stopped_by(&[Guard::PidNamespace, Guard::Seccomp])
.on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    Outcome::of("ptrace", process::ptrace_seize(stage.victim))
}
