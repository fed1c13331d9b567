//! Computes past its time.
//!
//! Stops by itself at twice the limit.

use std::time::{Duration, Instant};

use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("time-spin", Family::Exhaustion, Guard::TimeLimit, attempt)
        .gains("computes for ever")
        .on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    let end = Instant::now() + (stage.limits.time() * 2).min(Duration::from_secs(700));
    while Instant::now() < end {
        std::hint::spin_loop();
    }
    Outcome::succeeded("computed past its time")
}
