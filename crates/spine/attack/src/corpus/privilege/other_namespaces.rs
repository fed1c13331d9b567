//! Makes the other namespaces, and hides from what watches it.
//!
//! They end with the worker.

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack = Attack::new(
    "other-namespaces",
    Family::Privilege,
    Guard::Seccomp,
    attempt,
)
.gains("moves into mount, pid or network namespaces of its own making")
.also_stopped_by(&[Guard::NoCapabilities])
.on_its_word();

fn attempt(_: &Stage) -> Outcome {
    let kinds = [
        ("mount", libc::CLONE_NEWNS),
        ("network", libc::CLONE_NEWNET),
        ("pid", libc::CLONE_NEWPID),
        ("ipc", libc::CLONE_NEWIPC),
        ("uts", libc::CLONE_NEWUTS),
        ("cgroup", libc::CLONE_NEWCGROUP),
    ];
    Outcome::best(
        kinds.map(|(name, flag)| Outcome::of(&format!("unshare({name})"), process::unshare(flag))),
    )
}
