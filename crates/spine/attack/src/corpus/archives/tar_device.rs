//! An archive with the host's disk as a device, extracted and merged.
//!
//! Nobody opens it.

use crate::corpus::archive::{Entry, Kind, extract};
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "tar-device",
    Family::Archives,
    Guard::UserNamespace,
    attempt,
)
.gains("brings the host's disk as a device into the project")
.also_stopped_by(&[Guard::NoCapabilities, Guard::MergeRefusal])
.merged(&["source/disk"]);

fn attempt(_: &Stage) -> Outcome {
    extract(&[Entry {
        name: "source/disk",
        kind: Kind::Device(254, 0),
        mode: 0o666,
    }])
}
