//! Plants the names by which image layers delete files.
//!
//! Whoever believes them removes files that nobody deleted.

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "whiteout-name",
    Family::Archives,
    Guard::MergeRefusal,
    attempt,
)
.gains("has the host delete files by the names that layers use for it")
.merged(&["README.md", "docs/guide.md"]);

fn attempt(_: &Stage) -> Outcome {
    let names = [".wh.README.md", "docs/.wh..wh..opq", "docs/.wh.guide.md"];
    Outcome::best(names.map(|name| look::create(name, "")))
}
