//! Opens every descriptor of every process it can see.
//!
//! Reads only.

use std::fs;
use std::path::Path;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "proc-descriptors",
    Family::Paths,
    Guard::UserNamespace,
    attempt,
)
.gains("reads files that other processes have open")
.also_stopped_by(&[Guard::PidNamespace]);

fn attempt(_: &Stage) -> Outcome {
    let tries = look::processes().map(|process| match fs::read_dir(process.join("fd")) {
        Ok(entries) => Outcome::best(
            entries
                .flatten()
                .map(|entry| entry.path())
                .filter(|path| !is_pipe(path))
                .map(look::read),
        ),
        Err(error) => Outcome::stopped(&format!("list files of {}", process.display()), error),
    });
    match Outcome::best(tries.take(10_000)) {
        Outcome::Unavailable { .. } => Outcome::blocked("no other process is to be seen"),
        outcome => outcome,
    }
}

/// Reading a pipe would take the marker out of this attempt's own output.
fn is_pipe(descriptor: &Path) -> bool {
    fs::read_link(descriptor).is_ok_and(|target| target.to_string_lossy().starts_with("pipe:"))
}
