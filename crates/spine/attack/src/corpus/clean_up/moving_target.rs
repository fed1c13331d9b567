//! Lives on in its children, so that a list of processes is old at once.
//!
//! One at a time, 500 generations of twenty milliseconds.

use std::time::Duration;

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack =
    Attack::new("moving-target", Family::CleanUp, Guard::KillTree, attempt)
        .gains("escapes whoever kills processes one by one")
        .also_stopped_by(&[Guard::PidNamespace]);

fn attempt(_: &Stage) -> Outcome {
    let started = process::fork(|| {
        process::setsid();
        generation(500)
    });
    Outcome::of("start to run", started)
}

fn generation(left: u32) -> i32 {
    std::thread::sleep(Duration::from_millis(20));
    if left > 0 {
        // Where it cannot fork, the chase is over.
        let _next = process::fork(|| generation(left - 1));
    }
    0
}
