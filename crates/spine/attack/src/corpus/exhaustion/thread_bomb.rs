//! Starts threads until it is stopped.
//!
//! Stops by itself at twice the limit, at most 5,000.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("thread-bomb", Family::Exhaustion, Guard::PidLimit, attempt)
        .gains("takes every process number of the machine with threads")
        .on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    let target = stage.limits.pids.saturating_mul(2).min(5000);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut refused = None;
        let mut started = 0;
        while started < target && refused.is_none() {
            let wait = || {
                while !over.load(Ordering::Relaxed) {
                    thread::park_timeout(Duration::from_millis(50));
                }
            };
            let builder = thread::Builder::new().stack_size(32 * 1024);
            match builder.spawn_scoped(scope, wait) {
                Ok(_) => started += 1,
                Err(error) => refused = Some(error),
            }
        }
        if refused.is_none() {
            look::hold_still();
        }
        over.store(true, Ordering::Relaxed);
        match refused {
            Some(error) => Outcome::stopped(&format!("thread after {started}"), error),
            None => Outcome::succeeded(format!("{started} threads at once")),
        }
    })
}
