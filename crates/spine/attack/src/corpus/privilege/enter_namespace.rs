//! Moves into the namespaces of another process.
//!
//! Nothing is done there.

use std::fs::File;

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack = Attack::new(
    "enter-namespace",
    Family::Privilege,
    Guard::NoCapabilities,
    attempt,
)
.gains("moves into the namespaces of a process outside")
.also_stopped_by(&[Guard::PidNamespace, Guard::Seccomp, Guard::UserNamespace])
.on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    let owners = [stage.victim.to_string(), "1".to_owned()];
    let kinds = ["user", "mnt", "net", "ipc"];
    let pairs = owners
        .iter()
        .flat_map(|owner| kinds.map(|kind| (owner, kind)));
    Outcome::best(pairs.map(|(owner, kind)| {
        let path = format!("/proc/{owner}/ns/{kind}");
        match File::open(&path) {
            Ok(file) => Outcome::of(&format!("enter {path}"), process::setns(&file.into())),
            Err(error) => Outcome::stopped(&format!("open {path}"), error),
        }
    }))
}
