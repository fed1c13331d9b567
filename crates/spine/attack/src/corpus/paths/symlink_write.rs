//! Puts a link to the outside into the project and writes through it.
//!
//! The only file it can reach is a canary.

use std::os::unix::fs::symlink;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("symlink-write", Family::Paths, Guard::MountTable, attempt)
        .gains("changes a file outside through a link in the project")
        .also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    match symlink(stage.canary(), "link") {
        Ok(()) => look::change("link"),
        Err(error) => Outcome::stopped("make a link", error),
    }
}
