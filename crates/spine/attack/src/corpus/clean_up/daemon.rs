//! Leaves a daemon behind: twice forked, in a session of its own.
//!
//! It sleeps for two minutes.

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack = Attack::new("daemon", Family::CleanUp, Guard::KillTree, attempt)
    .gains("keeps running after its sandbox has ended")
    .also_stopped_by(&[Guard::PidNamespace]);

fn attempt(_: &Stage) -> Outcome {
    let end = process::in_child(|| {
        process::setsid();
        process::fork(linger).map_or(1, |_| 0)
    });
    Outcome::of("leave a daemon", end)
}

fn linger() -> i32 {
    std::thread::sleep(std::time::Duration::from_secs(120));
    0
}
