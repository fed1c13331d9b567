//! Prints one line without end, as errors.
//!
//! Stops by itself at twice the limit, at most 1 GiB.

use std::io::Write;

use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "endless-line",
    Family::Exhaustion,
    Guard::OutputLimit,
    attempt,
)
.gains("fills the memory of whoever waits for the end of a line")
.on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    let target = stage.limits.output.saturating_mul(2).min(1 << 30);
    let part = [b'x'; 4096];
    let mut errors = std::io::stderr().lock();
    for _ in 0..target / 4096 {
        if let Err(error) = errors.write_all(&part) {
            return Outcome::stopped("print", error);
        }
    }
    Outcome::succeeded(format!("one line of {} MiB", target >> 20))
}
