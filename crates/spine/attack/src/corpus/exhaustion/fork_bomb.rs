//! Starts processes until it is stopped.
//!
//! Stops by itself at twice the limit, at most 5,000, and ends them all.

use crate::corpus::look;
use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack =
    Attack::new("fork-bomb", Family::Exhaustion, Guard::PidLimit, attempt)
        .gains("takes every process number of the machine")
        .on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    let target = stage.limits.pids.saturating_mul(2).min(5000);
    let mut children = Vec::new();
    let mut refused = None;
    for _ in 0..target {
        match process::fork(pause) {
            Ok(child) => children.push(child),
            Err(errno) => {
                refused = Some(errno);
                break;
            }
        }
    }
    let started = children.len();
    if refused.is_none() {
        look::hold_still();
    }
    for &child in &children {
        process::kill_child(child);
    }
    for child in children {
        // Reaped here or by the sandbox.
        let _end = process::wait(child);
    }
    match refused {
        Some(errno) => Outcome::stopped(&format!("fork after {started}"), errno),
        None => Outcome::succeeded(format!("{started} processes at once")),
    }
}

fn pause() -> i32 {
    std::thread::sleep(std::time::Duration::from_secs(30));
    0
}
