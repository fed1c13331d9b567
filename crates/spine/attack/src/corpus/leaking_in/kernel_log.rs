//! Reads the kernel's log.
//!
//! Reads only, and keeps nothing. It holds addresses that exploits need.

use crate::corpus::prelude::*;
use crate::sys::kernel;

pub(crate) const ATTACK: Attack =
    Attack::new("kernel-log", Family::LeakingIn, Guard::Seccomp, attempt)
        .gains("reads the kernel's log, with addresses that exploits need")
        .also_stopped_by(&[Guard::NoCapabilities])
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::of("syslog", kernel::kernel_log())
}
