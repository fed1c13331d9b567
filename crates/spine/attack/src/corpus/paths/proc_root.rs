//! Goes through the kernel's own links to its root and working folder.
//!
//! Reads only.

use std::path::Path;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("proc-root", Family::Paths, Guard::MountTable, attempt)
        .gains("reads a file outside through `/proc/self/root` and its kin")
        .also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    let canary = stage.canary();
    let inner = canary.strip_prefix("/").unwrap_or(&canary);
    let roots = [
        "/proc/self/root",
        "/proc/thread-self/root",
        "/proc/self/cwd/../../../../..",
    ];
    Outcome::best(roots.map(|root| look::read(Path::new(root).join(inner))))
}
