//! Takes memory until it is stopped.
//!
//! Stops by itself at twice the limit, at most 8 GiB.

use crate::corpus::look;
use crate::corpus::prelude::*;
use crate::sys::memory;

pub(crate) const ATTACK: Attack = Attack::new(
    "memory-heap",
    Family::Exhaustion,
    Guard::MemoryLimit,
    attempt,
)
.gains("takes the machine's memory")
.on_its_word();

const CHUNK: u64 = 4 << 20;

fn attempt(stage: &Stage) -> Outcome {
    let target = stage.limits.memory.saturating_mul(2).min(8 << 30);
    let chunk = usize::try_from(CHUNK).unwrap_or(usize::MAX);
    for taken in 0..target / CHUNK {
        if let Err(errno) = memory::map_and_touch(chunk) {
            return Outcome::stopped(&format!("mmap after {} MiB", taken * 4), errno);
        }
    }
    look::hold_still();
    Outcome::succeeded(format!("took {} MiB", target >> 20))
}
