//! Connects to an abstract unix socket of the host.
//!
//! To a canary; sends nothing. Abstract names are in no folder, so no mount
//! table hides them.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "abstract-socket",
    Family::TalkingOut,
    Guard::NetworkNamespace,
    attempt,
)
.gains("reaches the desktop and other services by abstract sockets")
.also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    let stream = SocketAddr::from_abstract_name(&stage.abstract_name)
        .and_then(|address| UnixStream::connect_addr(&address));
    look::outcome("connect to an abstract socket", stream)
}
