//! Opens a socket that sees and sends whole packets.
//!
//! Closed at once.

use rustix::net::{AddressFamily, SocketType, socket};

use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("packet-socket", Family::Kernel, Guard::Seccomp, attempt)
        .gains("sees and forges packets, and reaches code that has had many faults")
        .also_stopped_by(&[Guard::NoCapabilities])
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    let kinds = [SocketType::RAW, SocketType::DGRAM];
    Outcome::best(
        kinds.map(|kind| Outcome::of("socket(packet)", socket(AddressFamily::PACKET, kind, None))),
    )
}
