//! Gives a file outside a second name inside.
//!
//! The only file it can reach is a canary.

use std::fs;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("hard-link", Family::Paths, Guard::MountTable, attempt)
        .gains("changes a file outside by a second name for it")
        .also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    match fs::hard_link(stage.canary(), "second-name") {
        Ok(()) => look::change("second-name"),
        Err(error) => Outcome::stopped("link", error),
    }
}
