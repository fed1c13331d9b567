//! Leaves a process behind that is stopped and so hears nothing.
//!
//! It ends as soon as it is continued.

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack =
    Attack::new("stopped-process", Family::CleanUp, Guard::KillTree, attempt)
        .gains("stays as a stopped process that polite signals do not end")
        .also_stopped_by(&[Guard::PidNamespace]);

fn attempt(_: &Stage) -> Outcome {
    let child = process::fork(|| {
        process::setsid();
        process::stop();
        0
    });
    Outcome::of("leave a stopped process", child)
}
