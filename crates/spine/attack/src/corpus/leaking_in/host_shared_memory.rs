//! Reads what others keep in `/dev/shm`.
//!
//! Reads only.

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "host-shared-memory",
    Family::LeakingIn,
    Guard::MountTable,
    attempt,
)
.gains("reads the shared memory of browsers and databases")
.also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    look::read(&stage.shared_memory)
}
