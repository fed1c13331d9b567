//! Leaves a message queue behind, which no process needs to hold.
//!
//! Empty.

use std::ffi::CString;

use crate::corpus::prelude::*;
use crate::sys::memory;

pub(crate) const ATTACK: Attack =
    Attack::new("queue-left", Family::CleanUp, Guard::IpcNamespace, attempt)
        .gains("keeps messages after its end, and hands them to the next sandbox");

fn attempt(stage: &Stage) -> Outcome {
    match CString::new(format!("/{}", stage.unique())) {
        Ok(name) => Outcome::of("mq_open", memory::create_queue(&name)),
        Err(_) => Outcome::unavailable("no name for a queue"),
    }
}
