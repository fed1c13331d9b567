//! Plants names that are one name on other file systems.
//!
//! There the second would overwrite the first.

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "colliding-names",
    Family::Archives,
    Guard::MergeRefusal,
    attempt,
)
.gains("overwrites a file on macOS and Windows by a name that differs in case")
.merged(&["readme.MD"]);

fn attempt(_: &Stage) -> Outcome {
    look::create("readme.MD", "other\n")
}
