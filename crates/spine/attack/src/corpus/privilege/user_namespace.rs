//! Makes a user namespace, in which it would hold every capability.
//!
//! It ends with the worker.

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack =
    Attack::new("user-namespace", Family::Privilege, Guard::Seccomp, attempt)
        .gains("holds every capability over a part of the kernel that has had many faults")
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::of("unshare(user)", process::unshare(libc::CLONE_NEWUSER))
}
