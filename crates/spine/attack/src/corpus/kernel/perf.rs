//! Opens a performance counter.
//!
//! On itself; closed at once.

use crate::corpus::prelude::*;
use crate::sys::kernel;

pub(crate) const ATTACK: Attack = Attack::new("perf", Family::Kernel, Guard::Seccomp, attempt)
    .gains("measures other processes, and reaches code that has had many faults")
    .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::of("perf_event_open", kernel::perf_event_open())
}
