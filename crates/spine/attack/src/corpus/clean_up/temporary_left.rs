//! Leaves files in `/tmp` for whoever comes next.
//!
//! One small file.

use std::path::Path;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "temporary-left",
    Family::CleanUp,
    Guard::MountTable,
    attempt,
)
.gains("hands files to the next sandbox, or to the host, in `/tmp`")
.revisited(revisit);

const FOLDERS: [&str; 3] = ["/tmp", "/dev/shm", "/var/tmp"];

fn attempt(stage: &Stage) -> Outcome {
    Outcome::best(
        FOLDERS.map(|folder| look::create(Path::new(folder).join(stage.unique()), "left")),
    )
}

fn revisit(stage: &Stage) -> Outcome {
    Outcome::best(FOLDERS.map(|folder| {
        look::outcome(
            "find it",
            std::fs::read(Path::new(folder).join(stage.unique())),
        )
    }))
}
