//! Plants a pipe where the host expects a file.
//!
//! Whoever opens it waits for ever.

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "planted-pipe",
    Family::Archives,
    Guard::MergeRefusal,
    attempt,
)
.gains("makes whoever reads the project wait for ever")
.merged(&["source/pipe"]);

fn attempt(_: &Stage) -> Outcome {
    let made = mknodat(CWD, "source/pipe", FileType::Fifo, Mode::from(0o644), 0);
    Outcome::of("mkfifo", made)
}
