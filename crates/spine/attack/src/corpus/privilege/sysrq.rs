//! Opens the emergency switch of the machine.
//!
//! Opens for writing, and writes nothing.

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("sysrq", Family::Privilege, Guard::ProcMasks, attempt)
        .gains("restarts or freezes the machine")
        .also_stopped_by(&[Guard::UserNamespace])
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::best(["/proc/sysrq-trigger", "/sys/power/state"].map(look::open_for_writing))
}
