//! Opens a file system of its own through the newer interface.
//!
//! It is never mounted anywhere.

use rustix::mount::{FsOpenFlags, fsopen};

use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("new-file-system", Family::Paths, Guard::Seccomp, attempt)
        .gains("makes a file system by `fsopen`, past filters that know only `mount`")
        .also_stopped_by(&[Guard::NoCapabilities])
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::best(["tmpfs", "proc", "overlay"].map(|kind| {
        Outcome::of(
            &format!("fsopen {kind}"),
            fsopen(kind, FsOpenFlags::empty()),
        )
    }))
}
