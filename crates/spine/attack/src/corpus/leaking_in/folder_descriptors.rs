//! Climbs out through a folder that it was born with open.
//!
//! Reads only. CVE-2024-21626 was such a folder.

use std::fs;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "folder-descriptors",
    Family::LeakingIn,
    Guard::DescriptorScrub,
    attempt,
)
.gains("climbs out through folders that whoever started it had open")
.also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    let known = look::read(format!("/proc/self/fd/{}/canary", stage.folder));
    let all = fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten();
    let others = all.map(|entry| look::read(entry.path().join("canary")));
    Outcome::best(std::iter::once(known).chain(others))
}
