//! Mounts the old cgroup tree, whose release agent runs as root.
//!
//! Taken away at once. CVE-2022-0492.

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("release-agent", Family::Privilege, Guard::Seccomp, attempt)
        .gains("makes the kernel run a program outside when a cgroup empties")
        .also_stopped_by(&[Guard::NoCapabilities, Guard::Landlock])
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    let kinds = [("cgroup", Some(c"memory")), ("cgroup2", None)];
    let mounts = kinds.map(|(kind, options)| {
        let mounted = mount(kind, "source", kind, MountFlags::empty(), options);
        if mounted.is_ok() {
            // Nothing may be left on a machine whose guard has failed.
            let _taken_away = unmount("source", UnmountFlags::DETACH);
        }
        Outcome::of(&format!("mount {kind}"), mounted)
    });
    let agent = look::open_for_writing("/sys/fs/cgroup/memory/release_agent");
    Outcome::best(mounts.into_iter().chain([agent]))
}
