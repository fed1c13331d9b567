//! Reads every descriptor it was born with.
//!
//! Reads only. CVE-2024-21626 was one descriptor too many.

use std::fs;

use crate::corpus::look;
use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack = Attack::new(
    "inherited-descriptors",
    Family::LeakingIn,
    Guard::DescriptorScrub,
    attempt,
)
.gains("reads files that whoever started it had open");

fn attempt(stage: &Stage) -> Outcome {
    // Once as it is and once by its name, which walls see as another file.
    let direct = match process::read_descriptor(stage.descriptor) {
        Ok(bytes) => look::found("the descriptor", &bytes),
        Err(errno) => Outcome::stopped("read the descriptor", errno),
    };
    let known = look::read(format!("/proc/self/fd/{}", stage.descriptor));
    let all = fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten();
    // The three streams are ours by right, and reading them could wait.
    let others = all.filter(|entry| !["0", "1", "2"].iter().any(|own| entry.file_name() == *own));
    Outcome::best(
        [direct, known]
            .into_iter()
            .chain(others.map(|entry| look::read(entry.path()))),
    )
}
