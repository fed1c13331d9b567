//! Leaves a System V segment behind, which no process needs to hold.
//!
//! One page.

use crate::corpus::prelude::*;
use crate::survivor::segment_key;
use crate::sys::memory::{self, Segment};

pub(crate) const ATTACK: Attack = Attack::new(
    "segment-left",
    Family::CleanUp,
    Guard::IpcNamespace,
    attempt,
)
.gains("keeps memory after its end, and hands it to the next sandbox")
.revisited(revisit);

fn attempt(stage: &Stage) -> Outcome {
    let segment = Segment::create(segment_key(&stage.nonce), memory::PAGE);
    Outcome::of("shmget", segment.map(Segment::abandon))
}

fn revisit(stage: &Stage) -> Outcome {
    match memory::find_segment(segment_key(&stage.nonce)) {
        Some(_) => Outcome::succeeded("found the segment"),
        None => Outcome::blocked("the segment is gone"),
    }
}
