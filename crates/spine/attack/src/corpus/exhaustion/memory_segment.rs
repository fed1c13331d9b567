//! Takes memory as a System V segment.
//!
//! Stops by itself at twice the limit, at most 8 GiB; removes it.

use crate::corpus::look;
use crate::corpus::prelude::*;
use crate::sys::memory::Segment;

pub(crate) const ATTACK: Attack = Attack::new(
    "memory-segment",
    Family::Exhaustion,
    Guard::MemoryLimit,
    attempt,
)
.gains("takes the machine's memory as a segment that outlives processes")
.on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    let target = stage.limits.memory.saturating_mul(2).min(8 << 30);
    let size = usize::try_from(target).unwrap_or(usize::MAX);
    let segment = match Segment::create(libc::IPC_PRIVATE, size) {
        Ok(segment) => segment,
        Err(errno) => return Outcome::stopped("shmget", errno),
    };
    let filled = segment.fill(size, b"");
    if filled.is_ok() {
        look::hold_still();
    }
    Outcome::of(&format!("fill {} MiB", target >> 20), filled)
}
