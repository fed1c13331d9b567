//! Plants a hook that git would run at the next commit.
//!
//! It would print a word.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "git-hook",
    Family::Persistence,
    Guard::MergeRefusal,
    attempt,
)
.gains("runs code on the host at the user's next commit")
.merged(&[".git/hooks"]);

fn attempt(_: &Stage) -> Outcome {
    let hook = ".git/hooks/pre-commit";
    let planted = fs::create_dir_all(".git/hooks")
        .and_then(|()| fs::write(hook, "#!/bin/sh\necho planted\n"))
        .and_then(|()| fs::set_permissions(hook, fs::Permissions::from_mode(0o755)));
    look::outcome("plant a hook", planted)
}
