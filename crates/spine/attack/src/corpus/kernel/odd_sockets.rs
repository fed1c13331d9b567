//! Opens sockets of families that nobody needs.
//!
//! Closed at once.

use rustix::net::{AddressFamily, SocketType, socket};

use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("odd-sockets", Family::Kernel, Guard::Seccomp, attempt)
        .gains("reaches rarely used network code of the kernel, and the machine's host")
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    let families = [
        ("alg", 38, SocketType::SEQPACKET),
        ("vsock", 40, SocketType::STREAM),
        ("bluetooth", 31, SocketType::RAW),
        ("can", 29, SocketType::RAW),
        ("tipc", 30, SocketType::RDM),
        ("smc", 43, SocketType::STREAM),
        ("xdp", 44, SocketType::RAW),
    ];
    Outcome::best(families.map(|(name, number, kind)| {
        let family = AddressFamily::from_raw(number);
        Outcome::of(&format!("socket({name})"), socket(family, kind, None))
    }))
}
