//! Connects to a port on the host's loopback.
//!
//! To a canary; sends nothing.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "tcp-loopback",
    Family::TalkingOut,
    Guard::NetworkNamespace,
    attempt,
)
.gains("reaches databases and debuggers that listen on the host's loopback");

fn attempt(stage: &Stage) -> Outcome {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, stage.tcp));
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(1));
    look::outcome("connect to 127.0.0.1", stream)
}
