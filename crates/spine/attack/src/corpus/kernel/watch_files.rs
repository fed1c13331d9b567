//! Opens a watch on the file accesses of other processes.
//!
//! Watches nothing.

use crate::corpus::prelude::*;
use crate::sys::kernel;

pub(crate) const ATTACK: Attack =
    Attack::new("watch-files", Family::Kernel, Guard::Seccomp, attempt)
        .gains("watches, and holds up, the file accesses of other processes")
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::of("fanotify_init", kernel::fanotify())
}
