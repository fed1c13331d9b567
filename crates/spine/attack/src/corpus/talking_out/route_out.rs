//! Asks whether there is any way to the rest of the world.
//!
//! Sends nothing: connecting a datagram socket only chooses a route. One of
//! the addresses is where clouds hand out credentials.

use std::net::UdpSocket;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "route-out",
    Family::TalkingOut,
    Guard::NetworkNamespace,
    attempt,
)
.gains("has a way to the internet and to the cloud's metadata address")
.on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    if stage.address.is_none() {
        return Outcome::unavailable("this machine has no network");
    }
    let hosts = ["169.254.169.254:80", "192.0.2.1:53", "10.0.0.1:80"];
    Outcome::best(hosts.map(|host| {
        let routed = UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.connect(host));
        look::outcome(&format!("route to {host}"), routed)
    }))
}
