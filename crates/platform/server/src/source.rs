//! Where calls come from, as they are counted.
//!
//! Whoever has one address of IPv6 has as many more as they like: the least
//! that anybody is given is a network of 64 bits, and such a network is one
//! source. What is recorded is the whole address, not this. Next: `seats`.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};

/// The bits of an IPv6 address that its owner chose.
const OWN: u32 = 64;

/// What an address is counted as.
pub(crate) fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let network = (address.to_bits() >> OWN) << OWN;
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address => address,
    }
}

/// The same of where a call came from in words, which may be no address.
pub(crate) fn counted_text(source: &str) -> Cow<'_, str> {
    match source.parse() {
        Ok(address) => Cow::Owned(counted(address).to_string()),
        Err(_) => Cow::Borrowed(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_ipv6_is_one_source_and_an_address_of_ipv4_another() {
        for (one, other, is_same) in [
            ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", true),
            ("2001:db8:1:2::1", "2001:db8:1:3::1", false),
            ("192.0.2.1", "192.0.2.2", false),
            // However an address of IPv4 is written.
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("::ffff:192.0.2.1", "::ffff:192.0.2.2", false),
            // This machine is not all of a network.
            ("::1", "::2", false),
            ("socket:1000", "socket:1000", true),
            ("socket:1000", "socket:1001", false),
        ] {
            let same = counted_text(one) == counted_text(other);
            assert_eq!(same, is_same, "{one} and {other}");
        }
    }
}
