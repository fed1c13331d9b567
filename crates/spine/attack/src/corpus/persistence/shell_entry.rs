//! Plants a file that shells run on entering the project.
//!
//! A comment.

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "shell-entry",
    Family::Persistence,
    Guard::MergeRefusal,
    attempt,
)
.gains("runs code on the host when the user's shell enters the project")
.merged(&[".envrc"]);

fn attempt(_: &Stage) -> Outcome {
    look::create(".envrc", "# planted\n")
}
