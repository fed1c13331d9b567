//! Puts a link to the outside into the project and reads through it.
//!
//! Reads only.

use std::os::unix::fs::symlink;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("symlink-read", Family::Paths, Guard::MountTable, attempt)
        .gains("reads a file outside through a link in the project")
        .also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    match symlink(stage.canary(), "link") {
        Ok(()) => look::read("link"),
        Err(error) => Outcome::stopped("make a link", error),
    }
}
