//! The address of a provider: where the key and the conversation go.
//!
//! Only `https`, except on this machine, and nothing in it that could send a
//! request elsewhere: no user, no query, no strange characters. Never resolves
//! a name. Next: `selection`, which decides which address is used.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest address that is read.
const MAX_LENGTH: usize = 2048;

/// A provider's base URL.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BaseUrl {
    scheme: Scheme,
    host: String,
    port: u16,
    path: String,
}

/// How a provider is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// In the clear; on this machine only.
    Http,
    /// With TLS.
    Https,
}

/// Why a text is not a base URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseBaseUrlError {
    /// Not a URL of the accepted form. The text may hold a secret: not shown.
    #[error("not an address such as https://host/path: {problem}")]
    Form {
        /// What is wrong.
        problem: &'static str,
    },
    /// Plain `http` to another machine.
    #[error("`{host}` is another machine, which must be reached by https")]
    NotEncrypted {
        /// The host.
        host: String,
    },
}

impl BaseUrl {
    /// The scheme.
    #[must_use]
    pub const fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The host's name or address, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The path in front of every request's own, without a slash at its end.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether it is this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }

    /// Host and port, as in a `host` header or a `CONNECT` line.
    #[must_use]
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for BaseUrl {
    type Err = ParseBaseUrlError;

    fn from_str(text: &str) -> Result<Self, ParseBaseUrlError> {
        let form = |problem| ParseBaseUrlError::Form { problem };
        if text.len() > MAX_LENGTH {
            return Err(form("it is too long"));
        }
        let (scheme, rest) = match text.split_once("://") {
            Some(("https", rest)) => (Scheme::Https, rest),
            Some(("http", rest)) => (Scheme::Http, rest),
            Some(_) | None => return Err(form("it begins with neither https:// nor http://")),
        };
        let allowed = |c: char| c.is_ascii_graphic() && !"\"\\<>^`{|}".contains(c);
        if !rest.chars().all(allowed) {
            return Err(form("it has characters that no URL has"));
        }
        if rest.contains(['?', '#']) {
            return Err(form("it has a query or a fragment"));
        }
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, path.trim_matches('/')),
            None => (rest, ""),
        };
        if authority.contains('@') {
            return Err(form("it has a user or a password in it"));
        }
        if path.split('/').any(|part| part == "..") {
            return Err(form("it has `..` in its path"));
        }
        let (host, port) = split_authority(authority).ok_or_else(|| form("it names no host"))?;
        let port = match (port, scheme) {
            (Some(port), _) => port.parse().map_err(|_| form("its port is no number"))?,
            (None, Scheme::Https) => 443,
            (None, Scheme::Http) => 80,
        };
        let host = host.to_ascii_lowercase();
        if scheme == Scheme::Http && !is_loopback(&host) {
            return Err(ParseBaseUrlError::NotEncrypted { host });
        }
        let path = match path {
            "" => String::new(),
            path => format!("/{path}"),
        };
        Ok(Self {
            scheme,
            host,
            port,
            path,
        })
    }
}

fn split_authority(authority: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        let is_address = host.parse::<std::net::Ipv6Addr>().is_ok();
        let port = match rest {
            "" => None,
            rest => Some(rest.strip_prefix(':')?),
        };
        return is_address.then_some((host, port));
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    (!host.is_empty() && host.chars().all(allowed)).then_some((host, port))
}

fn is_loopback(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host);
    match name.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => name == "localhost" || name.ends_with(".localhost"),
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        let default = match self.scheme {
            Scheme::Http => 80,
            Scheme::Https => 443,
        };
        let authority = self.authority();
        let suffix = format!(":{default}");
        let authority = match self.port == default {
            true => authority.strip_suffix(&suffix).unwrap_or(&authority),
            false => &authority,
        };
        write!(f, "{scheme}://{authority}{}", self.path)
    }
}

impl fmt::Debug for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for BaseUrl {
    type Error = ParseBaseUrlError;

    fn try_from(text: String) -> Result<Self, ParseBaseUrlError> {
        text.parse()
    }
}

impl From<BaseUrl> for String {
    fn from(url: BaseUrl) -> Self {
        url.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_addresses_are_read_and_written_back() {
        for (text, authority, path) in [
            ("https://api.openai.com/v1", "api.openai.com:443", "/v1"),
            ("https://API.example.com:8443", "api.example.com:8443", ""),
            ("http://localhost:11434/v1/", "localhost:11434", "/v1"),
            ("http://127.0.0.1:80", "127.0.0.1:80", ""),
            ("http://[::1]:8080/a/b", "[::1]:8080", "/a/b"),
        ] {
            let url: BaseUrl = text.parse().unwrap();
            assert_eq!((url.authority().as_str(), url.path()), (authority, path));
            assert_eq!(url.to_string().parse(), Ok(url));
        }
    }

    #[test]
    fn what_could_lead_elsewhere_is_refused() {
        for text in [
            "api.openai.com",
            "ftp://host",
            "https://",
            "https://user:pass@host",
            "https://host?x=1",
            "https://host#x",
            "https://host:port",
            "https://host:99999",
            "https://[::1",
            "https://[zz]:1",
            "https://ho st",
            "https://host/\u{e9}",
            "https://host/a/../b",
            "https://host\r\nx: y",
        ] {
            assert!(
                matches!(text.parse::<BaseUrl>(), Err(ParseBaseUrlError::Form { .. })),
                "{text}"
            );
        }
        for text in [
            "http://example.com",
            "http://10.0.0.1",
            "http://127.0.0.1.example.com",
        ] {
            let error = text.parse::<BaseUrl>().unwrap_err();
            assert!(
                matches!(error, ParseBaseUrlError::NotEncrypted { .. }),
                "{text}"
            );
        }
    }
}
