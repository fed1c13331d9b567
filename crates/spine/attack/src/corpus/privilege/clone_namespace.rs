//! Makes a user namespace by `clone3`, whose flags no filter can read.
//!
//! The child ends at once.

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack = Attack::new(
    "clone-namespace",
    Family::Privilege,
    Guard::Seccomp,
    attempt,
)
.gains("makes a user namespace by `clone3`, past filters that know only `unshare`")
.on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::of("clone3(user)", process::clone3(libc::CLONE_NEWUSER))
}
