//! Copies the tree of mounts through the newer interface.
//!
//! The copy is closed at once.

use crate::corpus::prelude::*;
use crate::sys::kernel;

pub(crate) const ATTACK: Attack = Attack::new("open-tree", Family::Paths, Guard::Seccomp, attempt)
    .gains("copies mounts by `open_tree`, past filters that know only `mount`")
    .also_stopped_by(&[Guard::NoCapabilities])
    .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::of("open_tree", kernel::open_tree_clone(c"/"))
}
