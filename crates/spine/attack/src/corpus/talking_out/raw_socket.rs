//! Opens a raw socket, to forge packets or to tunnel in pings.
//!
//! Closed at once.

use rustix::net::{AddressFamily, SocketType, ipproto, socket};

use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "raw-socket",
    Family::TalkingOut,
    Guard::NoCapabilities,
    attempt,
)
.gains("forges packets and tunnels data in pings")
.also_stopped_by(&[Guard::Seccomp])
.on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::best([
        Outcome::of(
            "socket(raw, icmp)",
            socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)),
        ),
        Outcome::of(
            "socket(raw, tcp)",
            socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::TCP)),
        ),
    ])
}
