//! Talks to the kernel's packet filter over netlink.
//!
//! Opens the socket only. The usual way into the kernel from a namespace.

use rustix::net::{AddressFamily, SocketType, netlink, socket};

use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("filter-tables", Family::Kernel, Guard::Seccomp, attempt)
        .gains("reaches the kernel's packet filter, the most exploited code of late")
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    let opened = socket(
        AddressFamily::NETLINK,
        SocketType::RAW,
        Some(netlink::NETFILTER),
    );
    Outcome::of("socket(netlink, netfilter)", opened)
}
