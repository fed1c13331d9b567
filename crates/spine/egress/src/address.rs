//! Which addresses are nobody's business from inside a sandbox.
//!
//! Everything that is not plainly part of the public internet is named here:
//! the machine itself, its network, its cloud's metadata, and the IPv6 forms
//! that carry such an address inside. Names play no part; see `target.rs`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Serialize;

/// What an address that is not public is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reserved {
    /// This machine.
    Loopback,
    /// The wire this machine is on.
    LinkLocal,
    /// A cloud's description of this machine, often with credentials.
    Metadata,
    /// Somebody's own network, carriers' included.
    Private,
    /// Many machines at once.
    Multicast,
    /// No address at all.
    Unspecified,
    /// Examples in texts and measurements.
    Documentation,
    /// Kept for protocols or for later.
    Special,
}

impl Reserved {
    /// What the address is for; none for a public one.
    #[must_use]
    pub fn of(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V4(address) => of_v4(address),
            IpAddr::V6(address) => of_v6(address),
        }
    }
}

impl fmt::Display for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "this machine itself",
            Self::LinkLocal => "the local wire",
            Self::Metadata => "the cloud's metadata service",
            Self::Private => "a private network",
            Self::Multicast => "multicast",
            Self::Unspecified => "no address",
            Self::Documentation => "documentation and measurements",
            Self::Special => "reserved for protocols",
        })
    }
}

/// Metadata services that no general range covers by that name: Azure's is a
/// public address, Alibaba's and Oracle's lie in ranges for other purposes.
const METADATA_V4: [Ipv4Addr; 4] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
];
/// Amazon's.
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

fn of_v4(address: Ipv4Addr) -> Option<Reserved> {
    if METADATA_V4.contains(&address) {
        return Some(Reserved::Metadata);
    }
    match address.octets() {
        [0, 0, 0, 0] => Some(Reserved::Unspecified),
        [127, ..] => Some(Reserved::Loopback),
        [169, 254, ..] => Some(Reserved::LinkLocal),
        [10, ..] | [192, 168, ..] => Some(Reserved::Private),
        [172, second, ..] if second & 0xf0 == 16 => Some(Reserved::Private),
        [100, second, ..] if second & 0xc0 == 64 => Some(Reserved::Private),
        [224..=239, ..] => Some(Reserved::Multicast),
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] | [198, 18 | 19, ..] => {
            Some(Reserved::Documentation)
        }
        // This network, protocol assignments, old 6to4 relays, class E.
        [0, ..] | [192, 0, 0, _] | [192, 88, 99, _] | [240..=255, ..] => Some(Reserved::Special),
        _ => None,
    }
}

fn of_v6(address: Ipv6Addr) -> Option<Reserved> {
    if address == METADATA_V6 {
        return Some(Reserved::Metadata);
    }
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(Reserved::Unspecified),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(Reserved::Loopback),
        // Mapped, and translated by NAT64: reaches the IPv4 address inside.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            of_v4(v4(high, low))
        }
        // 6to4 carries the address of its relay.
        [0x2002, high, low, ..] => of_v4(v4(high, low)),
        // ISATAP does so in its second half.
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] if of_v4(v4(high, low)).is_some() => {
            of_v4(v4(high, low))
        }
        [0xfe80..=0xfebf, ..] => Some(Reserved::LinkLocal),
        // Unique local, and the site-local of old.
        [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] => Some(Reserved::Private),
        [0xff00..=0xffff, ..] => Some(Reserved::Multicast),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] | [0x2001, 2, 0, ..] => {
            Some(Reserved::Documentation)
        }
        // Teredo, ORCHID and the other protocol assignments.
        [0x2001, 0..=0x1ff, ..] => Some(Reserved::Special),
        // All that is in use for the public lies in one eighth.
        [0x2000..=0x3fff, ..] => None,
        _ => Some(Reserved::Special),
    }
}

fn v4(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(high) << 16 | u32::from(low))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_range_is_known_to_its_edges() {
        use Reserved::*;
        for (text, expected) in [
            ("0.0.0.0", Some(Unspecified)),
            ("0.255.255.255", Some(Special)),
            ("1.0.0.0", None),
            ("9.255.255.255", None),
            ("10.0.0.0", Some(Private)),
            ("10.255.255.255", Some(Private)),
            ("11.0.0.0", None),
            ("100.63.255.255", None),
            ("100.64.0.0", Some(Private)),
            ("100.127.255.255", Some(Private)),
            ("100.128.0.0", None),
            ("100.100.100.200", Some(Metadata)),
            ("126.255.255.255", None),
            ("127.0.0.0", Some(Loopback)),
            ("127.255.255.255", Some(Loopback)),
            ("128.0.0.0", None),
            ("168.63.129.16", Some(Metadata)),
            ("169.253.255.255", None),
            ("169.254.0.0", Some(LinkLocal)),
            ("169.254.169.254", Some(Metadata)),
            ("172.15.255.255", None),
            ("172.16.0.0", Some(Private)),
            ("172.31.255.255", Some(Private)),
            ("172.32.0.0", None),
            ("192.0.0.1", Some(Special)),
            ("192.0.2.1", Some(Documentation)),
            ("192.168.0.0", Some(Private)),
            ("192.169.0.0", None),
            ("198.17.255.255", None),
            ("198.18.0.0", Some(Documentation)),
            ("198.20.0.0", None),
            ("223.255.255.255", None),
            ("224.0.0.0", Some(Multicast)),
            ("240.0.0.0", Some(Special)),
            ("255.255.255.255", Some(Special)),
            ("::", Some(Unspecified)),
            ("::1", Some(Loopback)),
            ("::2", Some(Special)),
            ("::127.0.0.1", Some(Special)),
            ("::ffff:127.0.0.1", Some(Loopback)),
            ("::ffff:8.8.8.8", None),
            ("64:ff9b::10.0.0.1", Some(Private)),
            ("64:ff9b::8.8.8.8", None),
            ("64:ff9b:1::8.8.8.8", Some(Special)),
            ("100::1", Some(Special)),
            ("2000::", None),
            ("2001::1", Some(Special)),
            ("2001:1ff:ffff::", Some(Special)),
            ("2001:200::", None),
            ("2001:db8::1", Some(Documentation)),
            ("2002:7f00:1::1", Some(Loopback)),
            ("2002:a9fe:a9fe::", Some(Metadata)),
            ("2002:808:808::1", None),
            ("2606:4700::5efe:a00:1", Some(Private)),
            ("2606:4700::5efe:808:808", None),
            ("2606:4700::200:5efe:a00:1", Some(Private)),
            ("2606:4700:0:0:0:5efe:7f00:1", Some(Loopback)),
            ("3fff:fff::1", Some(Documentation)),
            ("3fff:1000::1", None),
            ("4000::", Some(Special)),
            ("fc00::1", Some(Private)),
            ("fd00:ec2::254", Some(Metadata)),
            ("fe80::1", Some(LinkLocal)),
            ("fec0::1", Some(Private)),
            ("ff02::1", Some(Multicast)),
        ] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(Reserved::of(address), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_embedding_hides_a_reserved_address(bits: u32, tail: u64) {
            let inner = Ipv4Addr::from(bits);
            let [high, low] = [(bits >> 16) as u128, u128::from(bits & 0xffff)];
            let inner_bits = high << 16 | low;
            let forms = [
                0xffff << 32 | inner_bits,
                0x64_ff9b << 96 | inner_bits,
                0x2002 << 112 | inner_bits << 80 | u128::from(tail),
            ];
            for form in forms {
                let outer = Reserved::of(IpAddr::V6(Ipv6Addr::from(form)));
                prop_assert_eq!(outer, Reserved::of(IpAddr::V4(inner)));
            }
        }
    }
}
