//! Mounts a folder over another, so that paths mean something else.
//!
//! One empty folder over another, taken away at once.

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new("bind-mount", Family::Paths, Guard::Seccomp, attempt)
    .gains("mounts one folder over another and so defeats rules on paths")
    .also_stopped_by(&[Guard::NoCapabilities, Guard::Landlock])
    .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    let mounted = mount("docs", "source", "", MountFlags::BIND, None);
    if mounted.is_ok() {
        // Nothing may be left on a machine whose guard has failed.
        let _taken_away = unmount("source", UnmountFlags::DETACH);
    }
    Outcome::of("mount", mounted)
}
