//! Asks for a restart.
//!
//! With magic numbers that mean none, so nothing ever happens.

use crate::corpus::prelude::*;
use crate::sys::kernel;

pub(crate) const ATTACK: Attack = Attack::new("restart", Family::Kernel, Guard::Seccomp, attempt)
    .gains("restarts the machine")
    .also_stopped_by(&[Guard::NoCapabilities])
    .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::of_reaching("reboot", kernel::reboot_with_wrong_magic())
}
