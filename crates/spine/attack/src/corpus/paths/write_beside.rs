//! Creates a file beside the project.
//!
//! In a folder of canaries.

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("write-beside", Family::Paths, Guard::MountTable, attempt)
        .gains("creates files outside the project")
        .also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    Outcome::best([
        look::create(stage.outside.join("planted"), "planted"),
        look::create("../outside/planted", "planted"),
        look::create("../planted", "planted"),
        look::change(stage.canary()),
    ])
}
