//! An archive with a setuid program of root, extracted and merged.
//!
//! The program is empty.

use crate::corpus::archive::{Entry, Kind, extract};
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("tar-setuid", Family::Archives, Guard::MergeRefusal, attempt)
        .gains("brings a setuid program into the project")
        .merged(&["source/tool"]);

fn attempt(_: &Stage) -> Outcome {
    extract(&[Entry {
        name: "source/tool",
        kind: Kind::File(""),
        mode: 0o6755,
    }])
}
