//! Goes through the root of the sandbox's first process.
//!
//! Reads only. Had the first process a wider view, this would share it.

use std::path::Path;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("proc-init", Family::Paths, Guard::UserNamespace, attempt)
        .gains("reads a file outside through the root of process 1")
        .also_stopped_by(&[Guard::PidNamespace]);

fn attempt(stage: &Stage) -> Outcome {
    let canary = stage.canary();
    let inner = canary.strip_prefix("/").unwrap_or(&canary);
    let victim = format!("/proc/{}/root", stage.victim);
    let roots = ["/proc/1/root", "/proc/1/cwd", "/proc/2/root", &victim];
    Outcome::best(roots.map(|root| look::read(Path::new(root).join(inner))))
}
