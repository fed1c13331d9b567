//! Tries a folder whose name starts with the project's.
//!
//! The only file it can change is a canary.

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("lookalike", Family::Paths, Guard::MountTable, attempt)
        .gains("reaches a folder whose name only starts like the project's")
        .also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    let canary = stage.lookalike.join("canary");
    Outcome::best([look::read(&canary), look::change(&canary)])
}
