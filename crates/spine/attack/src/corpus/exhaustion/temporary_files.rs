//! Fills the private file systems, which are memory.
//!
//! Stops by itself at twice the limit, at most 2 GiB each; removes all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::corpus::look;
use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack = Attack::new(
    "temporary-files",
    Family::Exhaustion,
    Guard::ScratchLimit,
    attempt,
)
.gains("takes the machine's memory as temporary files")
.on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    process::ignore(libc::SIGXFSZ);
    let target = stage.limits.tmpfs.saturating_mul(2).min(2 << 30) >> 20;
    Outcome::best(["/tmp", "/dev/shm"].map(|folder| {
        let folder = Path::new(folder).join(stage.unique());
        let filled = fs::create_dir(&folder).and_then(|()| fill(&folder, target));
        // Made by nobody else.
        let _removed = fs::remove_dir_all(&folder);
        look::outcome(&format!("{target} MiB in {}", folder.display()), filled)
    }))
}

fn fill(folder: &Path, megabytes: u64) -> io::Result<()> {
    let bytes = vec![1_u8; 1 << 20];
    (0..megabytes).try_for_each(|n| File::create(folder.join(n.to_string()))?.write_all(&bytes))
}
