//! Opens the settings that make the kernel run a program as root.
//!
//! Opens for writing, and writes nothing.

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("core-pattern", Family::Privilege, Guard::ProcMasks, attempt)
        .gains("makes the kernel run a program outside, as root")
        .also_stopped_by(&[Guard::UserNamespace])
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::best(
        [
            "/proc/sys/kernel/core_pattern",
            "/proc/sys/kernel/modprobe",
            "/proc/sys/fs/binfmt_misc/register",
            "/sys/kernel/uevent_helper",
        ]
        .map(look::open_for_writing),
    )
}
