//! Makes the read-only root writable again.
//!
//! Writes nothing even then.

use rustix::mount::{MountFlags, mount_remount};

use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("remount-writable", Family::Paths, Guard::Seccomp, attempt)
        .gains("makes the read-only root writable")
        .also_stopped_by(&[Guard::NoCapabilities, Guard::Landlock])
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::of("remount /", mount_remount("/", MountFlags::BIND, ""))
}
