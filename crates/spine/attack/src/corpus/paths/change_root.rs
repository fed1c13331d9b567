//! Moves its root down, to climb out above it.
//!
//! Nothing is done with the new root.

use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("change-root", Family::Paths, Guard::NoCapabilities, attempt)
        .gains("changes its root, the first step of the classic way out")
        .also_stopped_by(&[Guard::Seccomp])
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    let pivot = rustix::process::pivot_root(".", ".");
    let chroot = rustix::process::chroot("source");
    Outcome::best([
        Outcome::of("chroot", chroot),
        Outcome::of("pivot_root", pivot),
    ])
}
