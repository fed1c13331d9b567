//! Puts a file beside the programs that run the sandbox.
//!
//! The host removes it where it finds it; whoever can do this can also replace
//! them, which is what CVE-2019-5736 was about.

use std::fs;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("replace-runner", Family::Paths, Guard::MountTable, attempt)
        .gains("overwrites the program that starts the next sandbox")
        .also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    let programs = ["/proc/1/exe", "/proc/self/exe"].map(fs::read_link);
    let folders: Vec<_> = programs
        .iter()
        .flatten()
        .filter_map(|program| program.parent())
        .collect();
    look::plant(stage, &folders, "planted")
}
