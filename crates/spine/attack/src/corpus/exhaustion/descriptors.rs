//! Opens files until it is stopped.
//!
//! Stops by itself a little above the limit, at most at 70,000.

use std::fs::File;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "descriptors",
    Family::Exhaustion,
    Guard::OpenFilesLimit,
    attempt,
)
.gains("takes the machine's table of open files")
.on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    // Many machines have little more themselves.
    let target = stage.limits.descriptors.saturating_add(256).min(70_000);
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    // Where it cannot be raised, the lower limit stops us as well.
    let _raised = setrlimit(Resource::Nofile, raised);
    let mut files = Vec::new();
    for opened in 0..target {
        match File::open("/dev/null") {
            Ok(file) => files.push(file),
            Err(error) => return Outcome::stopped(&format!("open after {opened}"), error),
        }
    }
    Outcome::succeeded(format!("{target} open files"))
}
