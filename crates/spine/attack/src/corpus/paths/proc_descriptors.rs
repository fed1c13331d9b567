//! Opens every descriptor of every process it can see.
//!
//! Reads only.

use std::fs;

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
        Ok(entries) => Outcome::best(entries.flatten().map(|entry| look::read(entry.path()))),
        Err(error) => Outcome::stopped(&format!("list files of {}", process.display()), error),
    });
    match Outcome::best(tries.take(10_000)) {
        Outcome::Unavailable { .. } => Outcome::blocked("no other process is to be seen"),
        outcome => outcome,
    }
}
