//! Creates a file among the programs and the settings of the system.
//!
//! The host removes it where it finds it.

use std::path::Path;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("write-system", Family::Paths, Guard::MountTable, attempt)
        .gains("adds programs or settings to the system")
        .also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    let folders = ["/usr/bin", "/usr/lib", "/etc", "/bin", "/opt"];
    look::plant(stage, &folders.map(Path::new), "planted")
}
