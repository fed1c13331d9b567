//! Leaves a daemon behind that ignores every signal it can.
//!
//! It sleeps for two minutes.

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack =
    Attack::new("deaf-daemon", Family::CleanUp, Guard::KillTree, attempt)
        .gains("keeps running by ignoring the signals to end")
        .also_stopped_by(&[Guard::PidNamespace]);

fn attempt(_: &Stage) -> Outcome {
    Outcome::of("leave a daemon", process::fork(linger))
}

fn linger() -> i32 {
    for signal in 1..32 {
        process::ignore(signal);
    }
    process::setsid();
    std::thread::sleep(std::time::Duration::from_secs(120));
    0
}
