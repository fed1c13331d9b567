//! Becomes root by asking.
//!
//! Nothing is done with it.

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack = Attack::new(
    "become-root",
    Family::Privilege,
    Guard::NoCapabilities,
    attempt,
)
.gains("becomes root, or takes on groups that may read the disk")
.also_stopped_by(&[Guard::UserNamespace])
.on_its_word();

fn attempt(_: &Stage) -> Outcome {
    if rustix::process::geteuid().is_root() {
        return Outcome::succeeded("is root already");
    }
    Outcome::best([
        Outcome::of("setgroups", process::take_groups()),
        Outcome::of("setresuid", process::become_root()),
    ])
}
