//! Makes an io_uring, through which calls pass no filter.
//!
//! Closed at once.

use crate::corpus::prelude::*;
use crate::sys::kernel;

pub(crate) const ATTACK: Attack = Attack::new("io-uring", Family::Kernel, Guard::Seccomp, attempt)
    .gains("opens files and sockets through io_uring, past the filter")
    .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::of("io_uring_setup", kernel::io_uring_setup())
}
