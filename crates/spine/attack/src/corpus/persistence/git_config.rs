//! Changes git's settings so that `git status` runs a program.
//!
//! The program would be `true`.

use std::fs::OpenOptions;
use std::io::Write;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "git-config",
    Family::Persistence,
    Guard::MergeRefusal,
    attempt,
)
.gains("runs code on the host at the user's next `git status`")
.merged(&[".git/config"]);

fn attempt(_: &Stage) -> Outcome {
    let planted = OpenOptions::new()
        .append(true)
        .open(".git/config")
        .and_then(|mut file| {
            file.write_all(b"\tfsmonitor = true\n\tsshCommand = true\n[diff]\n\texternal = true\n")
        });
    look::outcome("change .git/config", planted)
}
