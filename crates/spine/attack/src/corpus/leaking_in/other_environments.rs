//! Looks through the environments of all processes it can see.
//!
//! Reads only. The sandbox's first process may have kept what was scrubbed.

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "other-environments",
    Family::LeakingIn,
    Guard::UserNamespace,
    attempt,
)
.gains("reads keys and passwords from the environments of other processes")
.also_stopped_by(&[Guard::PidNamespace]);

fn attempt(_: &Stage) -> Outcome {
    let tries = look::processes().map(|process| look::read(process.join("environ")));
    match Outcome::best(tries) {
        Outcome::Unavailable { .. } => Outcome::blocked("no other process is to be seen"),
        outcome => outcome,
    }
}
