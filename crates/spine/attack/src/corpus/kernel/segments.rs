//! Reaches the table of segments, an old and faulty corner.
//!
//! Only reads it.

use crate::corpus::prelude::*;
use crate::sys::kernel;

pub(crate) const ATTACK: Attack = Attack::new("segments", Family::Kernel, Guard::Seccomp, attempt)
    .gains("reaches the kernel's code for 16-bit segments, which has had many faults")
    .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::of("modify_ldt", kernel::modify_ldt())
}
