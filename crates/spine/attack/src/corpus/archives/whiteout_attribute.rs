//! Plants the attributes by which overlays delete and redirect.
//!
//! Whoever believes them removes files, or reads outside.

use rustix::fs::{XattrFlags, setxattr};

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "whiteout-attribute",
    Family::Archives,
    Guard::MergeRefusal,
    attempt,
)
.gains("has the host delete or redirect folders by an overlay's own marks")
.merged(&["docs/guide.md", "source/lib.txt"])
.revisited(revisit);

fn attempt(_: &Stage) -> Outcome {
    let marks = [
        ("docs", "user.overlay.opaque", "y"),
        ("source", "user.overlay.redirect", "/../outside"),
        ("source/lib.txt", "user.overlay.metacopy", ""),
        ("source/lib.txt", "user.overlay.whiteout", "y"),
    ];
    Outcome::best(marks.map(|(path, name, value)| {
        let set = setxattr(path, name, value.as_bytes(), XattrFlags::empty());
        Outcome::of(&format!("set {name}"), set)
    }))
}

fn revisit(_: &Stage) -> Outcome {
    Outcome::best(["source/canary", "source/lib.txt"].map(look::read))
}
