//! Climbs out of the project with `..`.
//!
//! Reads only.

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new("dot-dot", Family::Paths, Guard::MountTable, attempt)
    .gains("reads a file beside the project through `..`")
    .also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    let here = stage.here();
    Outcome::best([
        look::read("../outside/canary"),
        look::read(here.join("source/../../outside/canary")),
        look::read("./source/.././../outside//canary"),
        look::read(stage.canary()),
    ])
}
