//! Asks to take away mounts, to see what they cover.
//!
//! Only marks them as unused, which takes nothing away at the first asking.

use rustix::mount::{UnmountFlags, unmount};

use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new("uncover", Family::Paths, Guard::Seccomp, attempt)
    .gains("takes away a mount to see what it covers")
    .also_stopped_by(&[Guard::NoCapabilities, Guard::Landlock])
    .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::of_reaching("unmount /proc", unmount("/proc", UnmountFlags::EXPIRE))
}
