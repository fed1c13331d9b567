//! Plants a socket where the host expects a file.
//!
//! Nobody listens once the worker has ended.

use std::os::unix::net::UnixListener;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "planted-socket",
    Family::Archives,
    Guard::MergeRefusal,
    attempt,
)
.gains("plants a socket that programs of the host would talk to")
.merged(&["source/socket"]);

fn attempt(_: &Stage) -> Outcome {
    look::outcome("bind", UnixListener::bind("source/socket"))
}
