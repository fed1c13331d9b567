//! Leaves settings in the sandbox's own home for whoever comes next.
//!
//! One small file.

use std::path::PathBuf;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("home-left", Family::CleanUp, Guard::MountTable, attempt)
        .gains("hands settings to the next sandbox in its home")
        .revisited(revisit);

fn place(stage: &Stage) -> PathBuf {
    let home = std::env::var_os("HOME").map_or_else(|| "/home/fluffy".into(), PathBuf::from);
    home.join(stage.unique())
}

fn attempt(stage: &Stage) -> Outcome {
    look::create(place(stage), "left")
}

fn revisit(stage: &Stage) -> Outcome {
    let found = std::fs::read(place(stage));
    // Where nothing is separate, nothing may be left either.
    let _removed = std::fs::remove_file(place(stage));
    look::outcome("find it", found)
}
