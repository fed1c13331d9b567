//! Connects to a port on the host's `::1`, which filters often forget.
//!
//! To a canary; sends nothing.

use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "tcp-loopback6",
    Family::TalkingOut,
    Guard::NetworkNamespace,
    attempt,
)
.gains("reaches what listens on the host's IPv6 loopback");

fn attempt(stage: &Stage) -> Outcome {
    let Some(port) = stage.tcp6 else {
        return Outcome::unavailable("this machine has no IPv6 loopback");
    };
    let address = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(1));
    look::outcome("connect to ::1", stream)
}
