//! Takes memory as a file that exists nowhere.
//!
//! Stops by itself at twice the limit, at most 8 GiB; gone when it ends.

use std::fs::File;
use std::io::Write;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::corpus::look;
use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack = Attack::new(
    "memory-file",
    Family::Exhaustion,
    Guard::MemoryLimit,
    attempt,
)
.gains("takes the machine's memory as files in it, which some limits do not count")
.on_its_word();

/// Each file stays small, so that no limit on one file stops it.
const EACH: u64 = 8 << 20;

fn attempt(stage: &Stage) -> Outcome {
    process::ignore(libc::SIGXFSZ);
    let target = stage.limits.memory.saturating_mul(2).min(8 << 30);
    let zeros = vec![1_u8; 1 << 20];
    let mut files = Vec::new();
    for _ in 0..target / EACH {
        let mut file = match memfd_create("memory", MemfdFlags::CLOEXEC) {
            Ok(descriptor) => File::from(descriptor),
            Err(errno) => return Outcome::stopped("memfd_create", errno),
        };
        for _ in 0..EACH >> 20 {
            if let Err(error) = file.write_all(&zeros) {
                let taken = files.len() * 8;
                return Outcome::stopped(&format!("write after {taken} MiB"), error);
            }
        }
        files.push(file);
    }
    look::hold_still();
    Outcome::succeeded(format!("took {} MiB", target >> 20))
}
