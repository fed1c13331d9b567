//! An archive with a second name for a file outside.
//!
//! For a canary. CVE-2018-20990.

use crate::corpus::archive::{Entry, Kind, extract};
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "tar-hard-link",
    Family::Archives,
    Guard::MountTable,
    attempt,
)
.gains("gives a file outside a second name inside")
.also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    let canary = stage.canary();
    extract(&[Entry {
        name: "second-name",
        kind: Kind::HardLink(&canary.to_string_lossy()),
        mode: 0o644,
    }])
}
