//! Plants the device by which overlays delete files.
//!
//! Anybody may make it; whoever copies it has a device.

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "whiteout-device",
    Family::Archives,
    Guard::MergeRefusal,
    attempt,
)
.gains("brings a device node into the project")
.merged(&["source/white"]);

fn attempt(_: &Stage) -> Outcome {
    let none = makedev(0, 0);
    let made = mknodat(
        CWD,
        "source/white",
        FileType::CharacterDevice,
        Mode::from(0o666),
        none,
    );
    Outcome::of("mknod", made)
}
