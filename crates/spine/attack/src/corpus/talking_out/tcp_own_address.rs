//! Connects to the host by its address in the local network.
//!
//! To a canary; sends nothing.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "tcp-own-address",
    Family::TalkingOut,
    Guard::NetworkNamespace,
    attempt,
)
.gains("reaches the host and its neighbours in the local network");

fn attempt(stage: &Stage) -> Outcome {
    let Some(address) = stage.address else {
        return Outcome::unavailable("this machine has no address but loopback");
    };
    let address = SocketAddr::from((address, stage.tcp));
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(1));
    look::outcome(&format!("connect to {address}"), stream)
}
