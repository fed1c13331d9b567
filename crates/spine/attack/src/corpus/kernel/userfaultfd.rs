//! Opens a userfaultfd, the usual tool to win races in the kernel.
//!
//! Closed at once.

use crate::corpus::prelude::*;
use crate::sys::kernel;

pub(crate) const ATTACK: Attack =
    Attack::new("userfaultfd", Family::Kernel, Guard::Seccomp, attempt)
        .gains("halts the kernel in the middle of a copy, to win races in it")
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::of("userfaultfd", kernel::userfaultfd())
}
