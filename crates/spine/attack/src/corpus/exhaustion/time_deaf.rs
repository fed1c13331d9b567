//! Waits past its time and ignores every polite signal.
//!
//! Stops by itself at twice the limit.

use std::time::{Duration, Instant};

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack =
    Attack::new("time-deaf", Family::Exhaustion, Guard::TimeLimit, attempt)
        .gains("stays for ever by ignoring the signal to end")
        .on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    for signal in [
        libc::SIGTERM,
        libc::SIGINT,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGALRM,
    ] {
        process::ignore(signal);
    }
    let end = Instant::now() + (stage.limits.time() * 2).min(Duration::from_secs(700));
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        std::thread::sleep(left);
    }
    Outcome::succeeded("stayed past its time")
}
