//! Plants a hook under names that other file systems read as `.git`.
//!
//! It would print a word.

use std::fs;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "git-lookalike",
    Family::Persistence,
    Guard::MergeRefusal,
    attempt,
)
.gains("runs code on macOS and Windows, where `.GIT` is `.git`")
.merged(&[".GIT", "git~1", ".git ", ".g\u{200c}it"]);

fn attempt(_: &Stage) -> Outcome {
    let names = [".GIT", "git~1", ".git ", ".g\u{200c}it"];
    let planted = names.iter().try_for_each(|name| {
        fs::create_dir_all(format!("{name}/hooks"))?;
        fs::write(
            format!("{name}/hooks/pre-commit"),
            "#!/bin/sh\necho planted\n",
        )
    });
    look::outcome("plant a lookalike", planted)
}
