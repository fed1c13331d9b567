//! Makes a file that is far larger than the disk has room for.
//!
//! 12 GiB, sparse: it takes no room.

use std::fs::File;

use crate::corpus::look;
use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack = Attack::new(
    "sparse-file",
    Family::Exhaustion,
    Guard::FileSizeLimit,
    attempt,
)
.gains("makes a file that fills the disk of whoever copies it")
.on_its_word();

fn attempt(_: &Stage) -> Outcome {
    process::ignore(libc::SIGXFSZ);
    let sized = File::create("sparse").and_then(|file| file.set_len(12 << 30));
    look::outcome("12 GiB", sized)
}
