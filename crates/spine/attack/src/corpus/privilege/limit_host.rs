//! Takes away a limit from a process of the host.
//!
//! One process, started for this.

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack = Attack::new(
    "limit-host",
    Family::Privilege,
    Guard::PidNamespace,
    attempt,
)
.gains("takes files and memory away from processes outside");

fn attempt(stage: &Stage) -> Outcome {
    Outcome::of("prlimit", process::lower_limit_of(stage.victim))
}
