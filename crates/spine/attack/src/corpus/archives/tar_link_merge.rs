//! An archive with links to the outside, extracted and merged.
//!
//! Whoever later writes to the link would write outside.

use crate::corpus::archive::{Entry, Kind, extract};
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "tar-link-merge",
    Family::Archives,
    Guard::MergeRefusal,
    attempt,
)
.gains("brings a link into the project that leads the host's programs outside")
.merged(&["source/way", "source/up", "source/hop"]);

fn attempt(stage: &Stage) -> Outcome {
    let outside = stage.outside.to_string_lossy();
    let links = [
        ("source/way", &*outside),
        ("source/up", "../../outside"),
        ("source/hop", "way/canary"),
    ];
    extract(&links.map(|(name, target)| Entry {
        name,
        kind: Kind::Symlink(target),
        mode: 0o777,
    }))
}
