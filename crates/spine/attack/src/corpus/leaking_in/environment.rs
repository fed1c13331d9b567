//! Looks through its own environment.
//!
//! Reads only.

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "environment",
    Family::LeakingIn,
    Guard::EnvironmentScrub,
    attempt,
)
.gains("reads keys and passwords from the environment");

fn attempt(_: &Stage) -> Outcome {
    let all: Vec<u8> = std::env::vars_os()
        .flat_map(|(name, value)| {
            let mut line = name.into_encoded_bytes();
            line.push(b'=');
            line.extend(value.into_encoded_bytes());
            line.push(b'\n');
            line
        })
        .collect();
    look::found("environment", &all)
}
