//! Makes files until none can be made.
//!
//! Empty ones, at twice the limit it stops, at most 200,000; removes all.

use std::fs::{self, File};
use std::path::Path;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "many-files",
    Family::Exhaustion,
    Guard::ScratchLimit,
    attempt,
)
.gains("takes every inode, so that nobody can make a file")
.on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    let target = stage.limits.tmpfs_files.saturating_mul(2).min(200_000);
    let folder = Path::new("/tmp").join(stage.unique());
    if let Err(error) = fs::create_dir(&folder) {
        return Outcome::stopped("make a folder", error);
    }
    let made = (0..target).try_for_each(|n| File::create(folder.join(n.to_string())).map(drop));
    // Made by nobody else.
    let _removed = fs::remove_dir_all(&folder);
    look::outcome(&format!("{target} files"), made)
}
