//! Has git's settings include a file that looks harmless.
//!
//! The program in it would be `true`.

use std::fs;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "git-include",
    Family::Persistence,
    Guard::MergeRefusal,
    attempt,
)
.gains("runs code on the host by settings that git includes from the project")
.merged(&[".git/config"]);

fn attempt(_: &Stage) -> Outcome {
    let planted = fs::read_to_string(".git/config").and_then(|config| {
        fs::write("docs/settings", "[core]\n\tpager = true\n")?;
        fs::write(
            ".git/config",
            format!("{config}[InClude]\n\tPATH = ../docs/settings\n"),
        )
    });
    look::outcome("include a file", planted)
}
