//! Adds a line to the files that the user's shell runs.
//!
//! A comment, in a home made for this.

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "shell-startup",
    Family::Persistence,
    Guard::MountTable,
    attempt,
)
.gains("runs code on the host when the user next opens a shell")
.also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    let files = [".bashrc", ".profile"].map(|name| look::change(stage.home.join(name)));
    let planted = look::create(stage.home.join(".zshrc"), "# planted\n");
    Outcome::best(files.into_iter().chain([planted]))
}
