//! Asks whether a setuid program could still raise it.
//!
//! Only asks.

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack = Attack::new(
    "new-privileges",
    Family::Privilege,
    Guard::NoNewPrivileges,
    attempt,
)
.gains("gains root's rights from a setuid program such as `su`")
.on_its_word();

fn attempt(_: &Stage) -> Outcome {
    match process::no_new_privileges() {
        Ok(true) => Outcome::blocked("no_new_privs is set"),
        Ok(false) => Outcome::succeeded("no_new_privs is not set"),
        Err(errno) => Outcome::stopped("prctl", errno),
    }
}
