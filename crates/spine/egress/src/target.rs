//! Whom a request wants to reach: one host and port in the one spelling.
//!
//! The text comes from inside a sandbox. What a resolver, a proxy and a person
//! could read in different ways is refused here, before anything is decided or
//! looked up; `fluffy_policy::host` knows the spelling. Nothing resolves here.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use fluffy_policy::host::Address;

/// The longest authority that is looked at: a full name, a dot, a port.
const MAX_AUTHORITY: usize = 253 + 1 + 6;

/// A host and port that somebody wants to reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    host: String,
    port: u16,
    literal: Option<IpAddr>,
}

/// Why a text names no target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// It is longer than any name can be.
    #[error("the host is longer than {MAX_AUTHORITY} bytes")]
    TooLong,
    /// It has a byte that no name has: NUL, a control, a space, not ASCII.
    #[error("the host has a byte that no name has")]
    Bytes,
    /// It carries a name or password for the server.
    #[error("the host has a user before it")]
    UserInfo,
    /// It is an address in a spelling that programs read differently.
    #[error("the host is an address in an unclear spelling")]
    UnclearAddress,
    /// It is not a host and a port.
    #[error("the host is not a name and a port")]
    Malformed,
}

impl Target {
    /// Reads `host:port`; without a port, `default` is meant.
    ///
    /// # Errors
    /// The text could be read in more than one way, or is no host at all.
    pub fn parse(text: &[u8], default: Option<u16>) -> Result<Self, TargetError> {
        if text.len() > MAX_AUTHORITY {
            return Err(TargetError::TooLong);
        }
        if !text.iter().all(u8::is_ascii_graphic) {
            return Err(TargetError::Bytes);
        }
        let text = std::str::from_utf8(text).map_err(|_| TargetError::Bytes)?;
        if text.contains('@') {
            return Err(TargetError::UserInfo);
        }
        // The colons of an address without a port are inside its brackets.
        let bare = text
            .rsplit_once(':')
            .is_none_or(|(_, end)| end.ends_with(']'));
        let address = match (bare, default) {
            (true, Some(port)) => Address::parse(&format!("{text}:{port}")),
            (true, None) => None,
            (false, _) => Address::parse(text),
        };
        let address = address.ok_or_else(|| malformed(text, bare))?;
        let literal = literal(address.host());
        // Written with brackets, but an IPv4 address: two spellings of one.
        if text.starts_with('[') && matches!(literal, Some(IpAddr::V4(_))) {
            return Err(TargetError::UnclearAddress);
        }
        Ok(Self {
            host: address.host().to_owned(),
            port: address.port(),
            literal,
        })
    }

    /// The host: a lowercase name, or an address (IPv6 in brackets).
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The address, where the host is one rather than a name.
    #[must_use]
    pub const fn literal(&self) -> Option<IpAddr> {
        self.literal
    }

    /// Whatever a careless proxy would have understood, for controls.
    #[cfg(test)]
    pub(crate) fn parse_carelessly(text: &[u8], default: Option<u16>) -> Result<Self, TargetError> {
        let text = &*String::from_utf8_lossy(text);
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().ok()),
            None => (text, default),
        };
        Ok(Self {
            host: host.to_owned(),
            port: port.ok_or(TargetError::Malformed)?,
            literal: None,
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The address that a normalised host is, if it is one.
fn literal(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[') {
        Some(inner) => inner
            .strip_suffix(']')?
            .parse::<Ipv6Addr>()
            .ok()
            .map(IpAddr::V6),
        None => host.parse().ok(),
    }
}

/// Says whether it looks like an address, which has a clearer remedy.
fn malformed(text: &str, bare: bool) -> TargetError {
    let host = match text.rsplit_once(':') {
        Some((host, _)) if !bare => host,
        _ => text,
    };
    let host = host.trim_end_matches('.');
    let last = host.rsplit('.').next().unwrap_or_default();
    let number = last.bytes().all(|byte| byte.is_ascii_digit())
        || last
            .get(..2)
            .is_some_and(|start| start.eq_ignore_ascii_case("0x"));
    if (number && !last.is_empty()) || host.contains(':') || host.starts_with('[') {
        TargetError::UnclearAddress
    } else {
        TargetError::Malformed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, TargetError> {
        Target::parse(text.as_bytes(), None).map(|target| target.to_string())
    }

    #[test]
    fn one_host_has_one_spelling() {
        assert_eq!(read("Example.COM:443").unwrap(), "example.com:443");
        assert_eq!(read("example.com.:443").unwrap(), "example.com:443");
        assert_eq!(
            read("xn--bcher-kva.example:443").unwrap(),
            "xn--bcher-kva.example:443"
        );
        assert_eq!(read("[2001:DB8:0::1]:443").unwrap(), "[2001:db8::1]:443");
        assert_eq!(
            Target::parse(b"a.com", Some(80)).unwrap().to_string(),
            "a.com:80"
        );
        assert_eq!(
            Target::parse(b"[::1]", Some(80)).unwrap().to_string(),
            "[::1]:80"
        );
    }

    #[test]
    fn addresses_are_known_as_addresses() {
        let literal = |text: &str| Target::parse(text.as_bytes(), None).unwrap().literal();
        assert_eq!(literal("10.0.0.1:80"), Some(IpAddr::from([10, 0, 0, 1])));
        assert_eq!(literal("[::1]:80"), Some(IpAddr::V6(Ipv6Addr::LOCALHOST)));
        assert_eq!(literal("a.com:80"), None);
    }

    #[test]
    fn what_programs_read_differently_is_refused() {
        use TargetError::*;
        for (text, expected) in [
            ("127.1:80", UnclearAddress),
            ("2130706433:80", UnclearAddress),
            ("0x7f000001:80", UnclearAddress),
            ("0x7f.0.0.1:80", UnclearAddress),
            ("0177.0.0.1:80", UnclearAddress),
            ("127.0.0.0x1:80", UnclearAddress),
            ("127.0.0.01:80", UnclearAddress),
            ("1.2.3.4.5:80", UnclearAddress),
            ("::1:80", UnclearAddress),
            ("[::ffff:127.0.0.1]:80", UnclearAddress),
            ("[::ffff:7f00:1]:80", UnclearAddress),
            ("[fe80::1%eth0]:80", UnclearAddress),
            ("[fe80::1%25eth0]:80", UnclearAddress),
            ("[::1:80", UnclearAddress),
            ("user@a.com:80", UserInfo),
            ("allowed.com:443@evil.com:443", UserInfo),
            ("a.com\0.evil.com:80", Bytes),
            ("a.com :80", Bytes),
            ("a\r\n.com:80", Bytes),
            ("é.com:80", Bytes),
            ("a.com%00.b.com:80", Malformed),
            ("a.com/b:80", Malformed),
            ("a.com..:80", Malformed),
            ("a.com:", Malformed),
            ("a.com:0", Malformed),
            ("a.com:65536", Malformed),
            ("a.com:0443", Malformed),
            ("a.com:+443", Malformed),
            ("a.com", Malformed),
            ("a.com:443:443", UnclearAddress),
            (":443", Malformed),
            ("", Malformed),
            ("*.a.com:443", Malformed),
        ] {
            assert_eq!(read(text), Err(expected), "{text}");
        }
        assert_eq!(read(&format!("{}:443", "a".repeat(300))), Err(TooLong));
    }
}
