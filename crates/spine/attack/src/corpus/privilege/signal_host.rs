//! Stops a process of the host.
//!
//! One process, started for this; never a group and never everybody.

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack = Attack::new(
    "signal-host",
    Family::Privilege,
    Guard::PidNamespace,
    attempt,
)
.gains("kills processes outside")
.also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    Outcome::of("kill", process::signal(stage.victim, libc::SIGKILL))
}
