//! An archive with a link to the outside and a file through it.
//!
//! To canaries. CVE-2026-33056 and many before.

use crate::corpus::archive::{Entry, Kind, extract};
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "tar-link-write",
    Family::Archives,
    Guard::MountTable,
    attempt,
)
.gains("writes outside through a link that the archive brought itself")
.also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    let outside = stage.outside.to_string_lossy();
    extract(&[
        Entry {
            name: "way",
            kind: Kind::Symlink(&outside),
            mode: 0o777,
        },
        Entry {
            name: "way/planted",
            kind: Kind::File("planted"),
            mode: 0o644,
        },
    ])
}
