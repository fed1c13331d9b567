//! Mounts a file system inside a user namespace of its own.
//!
//! Both end with the worker. The first step of CVE-2023-0386 and its kin.

use rustix::mount::{MountFlags, mount};

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack = Attack::new(
    "namespace-mount",
    Family::Privilege,
    Guard::Seccomp,
    attempt,
)
.gains("mounts file systems in a user namespace, where faults made files setuid root")
.also_stopped_by(&[Guard::Landlock])
.on_its_word();

fn attempt(_: &Stage) -> Outcome {
    if let Err(errno) = process::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) {
        return Outcome::stopped("unshare(user, mount)", errno);
    }
    let mounted = mount("tmpfs", "source", "tmpfs", MountFlags::empty(), None);
    Outcome::of("mount in a user namespace", mounted)
}
