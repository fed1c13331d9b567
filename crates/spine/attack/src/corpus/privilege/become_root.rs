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
    let groups = Outcome::of("setgroups", process::take_groups());
    if !rustix::process::geteuid().is_root() {
        return Outcome::best([groups, Outcome::of("setresuid", process::become_root())]);
    }
    if is_the_real_one() {
        return Outcome::succeeded("is root already");
    }
    groups
}

/// Whether the user nought here is the user nought outside: the root of a
/// namespace of an ordinary user is that user, and called root in vain.
fn is_the_real_one() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let mut fields = map.split_whitespace();
    !matches!((fields.next(), fields.next()), (Some("0"), Some(outside)) if outside != "0")
}
