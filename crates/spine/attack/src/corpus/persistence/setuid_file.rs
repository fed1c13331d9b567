//! Plants a program that runs as its owner, whoever starts it.
//!
//! An empty file.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "setuid-file",
    Family::Persistence,
    Guard::MergeRefusal,
    attempt,
)
.gains("leaves a program that runs with the user's rights, or root's")
.merged(&["source/tool"]);

fn attempt(_: &Stage) -> Outcome {
    let tool = "source/tool";
    let planted = fs::write(tool, "")
        .and_then(|()| fs::set_permissions(tool, fs::Permissions::from_mode(0o6755)));
    look::outcome("plant a setuid file", planted)
}
