//! Hosts and ports, and the patterns rules use for them.
//!
//! `*.` stands for any number of labels below a domain and never for the
//! domain itself. A name that a resolver could read as an address is refused
//! unless it is written as one. Nothing here resolves names.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A host and port, in the one spelling we compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// Reads `host:port`; IPv6 addresses stand in brackets.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Self {
            host: normalise(host)?,
            port: parse_port(port)?,
        })
    }

    /// The host, lowercase.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// A pattern for hosts: `a.example.com`, `*.example.com`, with or without port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPattern {
    /// The host, or the domain above the wanted hosts.
    name: String,
    below: bool,
    port: Option<u16>,
}

/// Why a text is not a host pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostPatternError {
    /// `network_allow` names each port.
    #[error("`{0}` has no port")]
    NoPort(String),
    /// The host is not a name, an address or `*.` and a name.
    #[error("`{0}` is not a host")]
    Host(String),
    /// The port is not between 1 and 65535.
    #[error("`{0}` is not a port")]
    Port(String),
}

/// Whether a normalised host is an address, below which there is nothing.
fn is_address(name: &str) -> bool {
    name.starts_with('[') || name.parse::<Ipv4Addr>().is_ok()
}

impl HostPattern {
    /// Reads a pattern; without a port it means every port.
    ///
    /// # Errors
    /// The text is not a host pattern.
    pub fn parse(text: &str) -> Result<Self, HostPatternError> {
        let shown = || text.chars().take(128).collect::<String>();
        // The colons of a bare IPv6 address are inside its brackets.
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        let port = match port {
            Some(port) => Some(parse_port(port).ok_or_else(|| HostPatternError::Port(shown()))?),
            None => None,
        };
        let (name, below) = match host.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (host, false),
        };
        match normalise(name) {
            // Looked at after normalising, which takes a final dot away.
            Some(name) if !(below && is_address(&name)) => Ok(Self { name, below, port }),
            _ => Err(HostPatternError::Host(shown())),
        }
    }

    /// Reads an entry of `network_allow`, which always has a port.
    ///
    /// # Errors
    /// The text is not a host pattern, or names no port.
    pub fn parse_with_port(text: &str) -> Result<Self, HostPatternError> {
        let pattern = Self::parse(text)?;
        match pattern.port {
            Some(_) => Ok(pattern),
            None => Err(HostPatternError::NoPort(text.chars().take(128).collect())),
        }
    }

    /// Whether the host fits, whatever the port.
    #[must_use]
    pub fn matches_host(&self, host: &str) -> bool {
        match self.below {
            false => host == self.name,
            true => host
                .strip_suffix(self.name.as_str())
                .is_some_and(|labels| labels.len() > 1 && labels.ends_with('.')),
        }
    }

    /// The port it is limited to.
    #[must_use]
    pub const fn port(&self) -> Option<u16> {
        self.port
    }

    /// The host or domain, which every matching host equals or ends in.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether each host that `other` matches is matched by this one too.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let port = self.port.is_none() || self.port == other.port;
        let name = match (self.below, other.below) {
            (false, below) => !below && self.name == other.name,
            (true, false) => self.matches_host(&other.name),
            (true, true) => self.name == other.name || self.matches_host(&other.name),
        };
        port && name
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.below { "*." } else { "" };
        write!(f, "{star}{}", self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// The one spelling of a host: lowercase name or canonical address.
#[must_use]
pub fn normalise(text: &str) -> Option<String> {
    if let Some(inner) = text.strip_prefix('[') {
        let address: Ipv6Addr = inner.strip_suffix(']')?.parse().ok()?;
        // One machine must not have two spellings, or a deny misses the other.
        return Some(match address.to_ipv4_mapped() {
            Some(address) => address.to_string(),
            None => format!("[{address}]"),
        });
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.is_empty() || name.len() > 253 || !name.split('.').all(is_label) {
        return None;
    }
    // `127.1` and `0x7f.0.0.1` are addresses to many resolvers.
    let last = name.rsplit('.').next().unwrap_or_default();
    let numeric = last.bytes().all(|byte| byte.is_ascii_digit())
        || last
            .get(..2)
            .is_some_and(|start| start.eq_ignore_ascii_case("0x"));
    if numeric && name.parse::<Ipv4Addr>().is_err() {
        return None;
    }
    Some(name.to_ascii_lowercase())
}

fn is_label(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=63).contains(&text.len())
        && text.bytes().all(fits)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn parse_port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = digits && !text.starts_with('0');
    plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, address: &str) -> bool {
        let pattern = HostPattern::parse(pattern).unwrap();
        let address = Address::parse(address).unwrap();
        pattern.matches_host(address.host())
            && pattern.port().is_none_or(|port| port == address.port())
    }

    #[test]
    fn a_star_means_below_and_never_the_domain() {
        assert!(fits("*.cdn.example.com:443", "a.cdn.example.com:443"));
        assert!(fits("*.cdn.example.com:443", "a.b.cdn.example.com:443"));
        assert!(!fits("*.cdn.example.com:443", "cdn.example.com:443"));
        assert!(!fits("*.cdn.example.com:443", "evilcdn.example.com:443"));
        assert!(!fits("*.cdn.example.com:443", "a.cdn.example.com:80"));
        assert!(!fits(
            "*.cdn.example.com:443",
            "a.cdn.example.com.evil.org:443"
        ));
        assert!(fits("example.com", "EXAMPLE.com.:8443"));
        assert!(fits("[::1]:80", "[0:0::1]:80"));
        assert!(fits("10.0.0.1:80", "10.0.0.1:80"));
        assert!(fits("10.0.0.1:80", "[::ffff:10.0.0.1]:80"));
    }

    #[test]
    fn what_a_resolver_could_misread_is_no_address() {
        for text in [
            "127.1:80",
            "0x7f000001:80",
            "2130706433:80",
            "0x7f.0.0.1:80",
            "1.2.3.4.5:1",
            "::1:80",
            "a b:80",
            "a/b:80",
            "a@b:80",
            "-a:80",
            "a..b:80",
            ":80",
            "a:",
            "a:0",
            "a:65536",
            "a:+80",
            "a:080",
            "é.com:443",
            "*.a.com:443",
            "[::1:80",
            "a",
        ] {
            assert_eq!(Address::parse(text), None, "{text}");
        }
    }

    #[test]
    fn patterns_are_refused_with_what_is_wrong() {
        let error = |text| HostPattern::parse_with_port(text).unwrap_err().to_string();
        assert_eq!(error("a.com"), "`a.com` has no port");
        assert_eq!(error("*:443"), "`*:443` is not a host");
        assert_eq!(error("a.*.com:443"), "`a.*.com:443` is not a host");
        assert_eq!(error("*.10.0.0.1:443"), "`*.10.0.0.1:443` is not a host");
        assert_eq!(error("a.com:https"), "`a.com:https` is not a port");
        assert_eq!(error("[::1]"), "`[::1]` has no port");
    }

    #[test]
    fn covering_is_about_every_host() {
        let covers = |a: &str, b: &str| {
            HostPattern::parse(a)
                .unwrap()
                .covers(&HostPattern::parse(b).unwrap())
        };
        assert!(
            covers("*.a.com", "x.a.com:1")
                && covers("*.a.com", "*.b.a.com")
                && covers("a.com", "a.com:1")
        );
        assert!(
            !covers("a.com:1", "a.com")
                && !covers("*.a.com", "a.com")
                && !covers("x.a.com", "*.a.com")
        );
    }
}
