//! Addresses of requests: a registry's own, and those it sends us to.
//!
//! Only `http` and `https`, and no user or password in them. Says nothing
//! about whether a request may go there: `session` and `way` do.

use std::collections::BTreeSet;
use std::net::IpAddr;

use fluffy_manifest::ImageReference;
use hyper::Uri;

/// Whom a request goes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) scheme: Scheme,
    /// A name or an address, without brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

/// How it is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    Http,
    Https,
}

/// Where a request goes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) origin: Origin,
    /// The path, with the query.
    pub(super) path: String,
}

impl Origin {
    /// Where a registry is; the one of Docker has other names for people.
    /// One on this machine is spoken to in the clear unless it is `internal`.
    pub(super) fn of(
        reference: &ImageReference,
        insecure: &BTreeSet<String>,
        internal: &BTreeSet<String>,
    ) -> Self {
        let registry = match reference.registry() {
            "docker.io" => "registry-1.docker.io",
            other => other,
        };
        let (host, port) = match registry.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().ok()),
            None => (registry, None),
        };
        let here = is_loopback(host) && !internal.contains(registry);
        let scheme = match insecure.contains(registry) || here {
            true => Scheme::Http,
            false => Scheme::Https,
        };
        Self {
            scheme,
            host: host.to_owned(),
            port: port.unwrap_or(scheme.port()),
        }
    }

    /// As in a `Host` header.
    pub(super) fn authority(&self) -> String {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        match self.port == self.scheme.port() {
            true => host,
            false => format!("{host}:{}", self.port),
        }
    }
}

impl Scheme {
    const fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl Location {
    /// Reads a whole address, or a path at `base`.
    pub(super) fn read(text: &str, base: &Origin) -> Option<Self> {
        // Two slashes would begin another host.
        if text.starts_with('/') && !text.starts_with("//") {
            let path: Uri = text.parse().ok()?;
            return Some(Self {
                origin: base.clone(),
                path: path.path_and_query()?.to_string(),
            });
        }
        let address: Uri = text.parse().ok()?;
        let scheme = match address.scheme_str() {
            Some("https") => Scheme::Https,
            Some("http") => Scheme::Http,
            Some(_) | None => return None,
        };
        let authority = address.authority()?;
        if authority.as_str().contains('@') {
            return None;
        }
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        let origin = Origin {
            scheme,
            host: host.to_ascii_lowercase(),
            port: authority.port_u16().unwrap_or(scheme.port()),
        };
        let path = address.path_and_query()?.to_string();
        (!host.is_empty()).then_some(Self { origin, path })
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_registries_and_this_machine_are_spoken_to_in_the_clear() {
        let insecure = BTreeSet::from(["plain.test:5000".to_owned()]);
        let internal = BTreeSet::from(["127.0.0.1:5443".to_owned()]);
        for (reference, scheme, authority) in [
            ("nginx", Scheme::Https, "registry-1.docker.io"),
            ("ghcr.io/a/b", Scheme::Https, "ghcr.io"),
            ("ghcr.io:443/a/b", Scheme::Https, "ghcr.io"),
            ("plain.test:5000/a", Scheme::Http, "plain.test:5000"),
            ("plain.test/a", Scheme::Https, "plain.test"),
            ("localhost:5000/a", Scheme::Http, "localhost:5000"),
            ("127.0.0.1/a", Scheme::Http, "127.0.0.1"),
            ("127.0.0.1:5443/a", Scheme::Https, "127.0.0.1:5443"),
            (
                "localhost.evil.test/a",
                Scheme::Https,
                "localhost.evil.test",
            ),
        ] {
            let origin = Origin::of(&reference.parse().unwrap(), &insecure, &internal);
            assert_eq!(origin.scheme, scheme, "{reference}");
            assert_eq!(origin.authority(), authority, "{reference}");
        }
    }

    #[test]
    fn a_location_names_one_host_and_no_user() {
        let none = BTreeSet::new();
        let base = Origin::of(&"registry.test/a".parse().unwrap(), &none, &none);
        for (text, expected) in [
            ("/v2/x?y=z", Some(("registry.test", "/v2/x?y=z"))),
            ("https://CDN.test/x", Some(("cdn.test", "/x"))),
            ("https://cdn.test", Some(("cdn.test", "/"))),
            ("https://[::1]:8443/x", Some(("[::1]:8443", "/x"))),
            ("http://cdn.test:8080/x", Some(("cdn.test:8080", "/x"))),
            ("//evil.test/x", None),
            ("https://user:pass@evil.test/x", None),
            ("https:///x", None),
            ("file:///etc/passwd", None),
            ("ftp://cdn.test/x", None),
            ("x/y", None),
            ("", None),
        ] {
            let found = Location::read(text, &base);
            let found = found.as_ref().map(|it| (it.origin.authority(), &it.path));
            let found = found
                .as_ref()
                .map(|(host, path)| (host.as_str(), path.as_str()));
            assert_eq!(found, expected, "{text}");
        }
    }
}
