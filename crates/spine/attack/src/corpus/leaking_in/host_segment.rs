//! Attaches a System V segment of the host.
//!
//! Reads only.

use crate::corpus::look;
use crate::corpus::prelude::*;
use crate::sys::memory;

pub(crate) const ATTACK: Attack = Attack::new(
    "host-segment",
    Family::LeakingIn,
    Guard::IpcNamespace,
    attempt,
)
.gains("reads shared segments of databases outside");

fn attempt(stage: &Stage) -> Outcome {
    let Some(segment) = stage.segment else {
        return Outcome::unavailable("this kernel has no such segments");
    };
    match memory::read_segment(segment) {
        Ok(text) => look::found("shmat", text.as_bytes()),
        Err(errno) => Outcome::stopped("shmat", errno),
    }
}
