//! Looks at a process of the host through `/proc`.
//!
//! Reads only.

use std::path::Path;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "host-processes",
    Family::LeakingIn,
    Guard::PidNamespace,
    attempt,
)
.gains("reads the arguments, environment and files of processes outside");

fn attempt(stage: &Stage) -> Outcome {
    let victim = Path::new("/proc").join(stage.victim.to_string());
    Outcome::best(["cmdline", "environ", "fd/0"].map(|name| look::read(victim.join(name))))
}
