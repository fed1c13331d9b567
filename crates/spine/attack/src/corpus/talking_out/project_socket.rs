//! Connects to a socket that lies in the project itself.
//!
//! To a canary; sends nothing. Development servers put their sockets there.

use std::os::unix::net::UnixStream;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "project-socket",
    Family::TalkingOut,
    Guard::MountTable,
    attempt,
)
.gains("reaches services of the host by sockets that lie in the project");

fn attempt(_: &Stage) -> Outcome {
    look::outcome(
        "connect to service.sock",
        UnixStream::connect("service.sock"),
    )
}
