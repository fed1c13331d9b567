//! An archive whose names climb out.
//!
//! To canaries.

use crate::corpus::archive::{Entry, Kind, extract};
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "tar-traversal",
    Family::Archives,
    Guard::MountTable,
    attempt,
)
.gains("writes outside by names with `..` or a leading `/` in an archive")
.also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    let absolute = stage.outside.join("planted");
    let absolute = absolute.to_string_lossy();
    Outcome::best(["../outside/planted", &absolute].map(|name| {
        extract(&[Entry {
            name,
            kind: Kind::File("planted"),
            mode: 0o644,
        }])
    }))
}
