//! Copies an open file out of a process of the host.
//!
//! Reads only.

use std::fs::File;

use crate::corpus::look;
use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack = Attack::new(
    "steal-descriptor",
    Family::Privilege,
    Guard::UserNamespace,
    attempt,
)
.gains("copies open files out of processes outside")
.also_stopped_by(&[Guard::PidNamespace, Guard::Seccomp]);

fn attempt(stage: &Stage) -> Outcome {
    let stolen =
        process::pidfd_open(stage.victim).and_then(|victim| process::pidfd_getfd(&victim, 0));
    match stolen {
        Ok(descriptor) => look::read_open(File::from(descriptor), "pidfd_getfd"),
        Err(errno) => Outcome::stopped("pidfd_getfd", errno),
    }
}
