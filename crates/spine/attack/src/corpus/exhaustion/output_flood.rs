//! Prints without end.
//!
//! Stops by itself at twice the limit, at most 10 GiB.

use std::io::Write;

use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "output-flood",
    Family::Exhaustion,
    Guard::OutputLimit,
    attempt,
)
.gains("fills the memory or the disk of whoever keeps its output")
.on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    let target = stage.limits.output.saturating_mul(2).min(10 << 30);
    let line = format!("{}\n", "x".repeat(1023));
    let mut output = std::io::stdout().lock();
    for _ in 0..target / 1024 {
        if let Err(error) = output.write_all(line.as_bytes()) {
            return Outcome::stopped("print", error);
        }
    }
    Outcome::succeeded(format!("printed {} MiB", target >> 20))
}
