//! Reads what others keep in `/tmp`.
//!
//! Reads only.

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "host-temporary",
    Family::LeakingIn,
    Guard::MountTable,
    attempt,
)
.gains("reads what other programs keep in `/tmp`")
.also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    look::read(&stage.temporary)
}
