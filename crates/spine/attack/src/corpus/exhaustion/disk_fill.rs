//! Fills the disk with real data, in files that are each modest.
//!
//! Stops by itself at twice the limit, at most 2 GiB.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::corpus::look;
use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack =
    Attack::new("disk-fill", Family::Exhaustion, Guard::DiskLimit, attempt)
        .gains("fills the host's disk")
        .on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    process::ignore(libc::SIGXFSZ);
    let target = stage.limits.disk.saturating_mul(2).min(2 << 30) >> 20;
    let folder = Path::new("filling");
    let bytes = vec![1_u8; 1 << 20];
    let filled = fs::create_dir(folder).and_then(|()| {
        (0..target).try_for_each(|n| {
            let mut file = File::create(folder.join(n.to_string()))?;
            file.write_all(&bytes)
        })
    });
    if filled.is_ok() {
        look::hold_still();
    }
    look::outcome(&format!("{target} MiB"), filled)
}
