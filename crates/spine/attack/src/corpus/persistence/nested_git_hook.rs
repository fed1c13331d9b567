//! Plants a hook in a repository below, deeper than scans look.
//!
//! It would print a word.

use std::fs;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "nested-git-hook",
    Family::Persistence,
    Guard::MergeRefusal,
    attempt,
)
.gains("runs code on the host when the user commits in a folder below")
.merged(&["vendor/a/b/c/d/.git/hooks", ".git/modules/a/hooks"]);

fn attempt(_: &Stage) -> Outcome {
    let folders = ["vendor/a/b/c/d/.git/hooks", ".git/modules/a/hooks"];
    let planted = folders.iter().try_for_each(|folder| {
        fs::create_dir_all(folder)?;
        fs::write(
            format!("{folder}/post-checkout"),
            "#!/bin/sh\necho planted\n",
        )
    });
    look::outcome("plant a hook", planted)
}
