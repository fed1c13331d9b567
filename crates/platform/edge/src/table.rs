//! What a routing table may be: checked whole, before anything of it counts.
//!
//! Pure: messages in, a table or the reason against it out. What no server
//! would say refuses the whole table; two routes that want the same do not,
//! because then whoever made one of them would hold up everybody's.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use fluffy_api::node::v1;

/// The most routes, and the most instances of one.
const MOST_ROUTES: usize = 10_000;
const MOST_BACKENDS: usize = 1_000;

/// Ports that are never opened, whatever a table says.
const DENIED: [u16; 5] = [23, 25, 137, 138, 139];

/// Why a table is refused, whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: route `{route}`")]
pub struct RefusedTable {
    /// What is wrong.
    pub what: &'static str,
    /// The first route that is wrong.
    pub route: String,
}

/// Addresses that begin alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Any of them.
    pub address: IpAddr,
    /// How many bits are alike.
    pub length: u8,
}

/// Everything that is routed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// By the port they listen on.
    pub(crate) routes: BTreeMap<u16, Route>,
    /// Those that this edge cannot serve, and why.
    pub(crate) unserved: Vec<(String, &'static str)>,
}

/// One route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) id: String,
    pub(crate) env: String,
    pub(crate) backends: Vec<Backend>,
}

/// One instance behind a route.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Backend {
    pub(crate) instance: String,
    pub(crate) address: SocketAddr,
    pub(crate) draining: bool,
}

impl Prefix {
    /// Whether an address is one of them.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        let (own, other, whole) = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (u128::from(own.to_bits()), u128::from(other.to_bits()), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
            _ => return false,
        };
        let differ = own ^ other;
        // The highest bit that differs comes after those that must not.
        let alike = whole - (128 - differ.leading_zeros().min(128));
        differ == 0 || alike >= u32::from(self.length)
    }
}

impl Table {
    /// Reads a table whose instances are all within `prefixes`.
    pub(crate) fn read(told: &v1::RoutingTable, prefixes: &[Prefix]) -> Result<Self, RefusedTable> {
        let mut table = Self::default();
        let (mut ids, mut names, mut ports) = (HashSet::new(), HashSet::new(), HashSet::new());
        let refuse = |what, route: &v1::Route| RefusedTable {
            what,
            route: route.route_id.chars().take(64).collect(),
        };
        if let Some(route) = told.routes.get(MOST_ROUTES) {
            return Err(refuse("there are too many routes", route));
        }
        // By id, so that every edge keeps the same one of two: the older.
        let mut routes: Vec<&v1::Route> = told.routes.iter().collect();
        routes.sort_by(|one, other| one.route_id.cmp(&other.route_id));
        for route in routes {
            let refuse = |what| refuse(what, route);
            if route.route_id.is_empty() || !ids.insert(&route.route_id) {
                return Err(refuse("two routes have one id, or none"));
            }
            let port = u16::try_from(route.listen_port).unwrap_or(0);
            if port == 0 || DENIED.contains(&port) {
                return Err(refuse("the port is never opened"));
            }
            let backends = backends(route, prefixes).map_err(refuse)?;
            let served = match (route.protocol_hint.as_str(), route.proxy_protocol.as_str()) {
                ("tcp_raw", "off") => Ok(()),
                ("tls_passthrough", "off" | "v2") | ("tcp_raw", "v2") => Err("unsupported"),
                _ => return Err(refuse("it has no protocol that is known")),
            };
            let raw = route.protocol_hint == "tcp_raw";
            // An address of its own has ports of its own.
            let is_first = match raw {
                true => ports.insert((route.ipv4_address.as_str(), port)),
                false => names.insert((route.hostname.as_str(), port)),
            };
            let read = Route {
                id: route.route_id.clone(),
                env: route.env_id.clone(),
                backends,
            };
            match served {
                Ok(()) if is_first && !table.routes.contains_key(&port) => {
                    table.routes.insert(port, read);
                }
                Err(why) if is_first => table.unserved.push((read.id, why)),
                _ => table.unserved.push((read.id, "bind_failed")),
            }
        }
        Ok(table)
    }
}

fn backends(route: &v1::Route, prefixes: &[Prefix]) -> Result<Vec<Backend>, &'static str> {
    if route.backends.len() > MOST_BACKENDS {
        return Err("it has too many instances");
    }
    let mut read = Vec::new();
    for backend in &route.backends {
        let address: Option<IpAddr> = backend.address.parse().ok();
        let port = u16::try_from(backend.port).ok().filter(|port| *port > 0);
        let Some((address, port)) = address.zip(port) else {
            return Err("an instance has no address");
        };
        if !prefixes.iter().any(|prefix| prefix.contains(address)) {
            return Err("an instance is where none may be");
        }
        read.push(Backend {
            instance: backend.instance_id.clone(),
            address: SocketAddr::new(address, port),
            draining: backend.draining,
        });
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes() -> [Prefix; 1] {
        let address = "fd00:1::".parse().unwrap();
        [Prefix {
            address,
            length: 48,
        }]
    }

    fn route(id: &str, port: u32) -> v1::Route {
        v1::Route {
            route_id: id.to_owned(),
            env_id: "env_1".to_owned(),
            listen_port: port,
            protocol_hint: "tcp_raw".to_owned(),
            proxy_protocol: "off".to_owned(),
            backends: vec![v1::Backend {
                instance_id: "inst_1".to_owned(),
                address: "fd00:1::7".to_owned(),
                port: 8080,
                draining: false,
            }],
            ..Default::default()
        }
    }

    fn read(routes: Vec<v1::Route>) -> Result<Table, &'static str> {
        let config = None;
        let read = Table::read(&v1::RoutingTable { config, routes }, &prefixes());
        read.map_err(|refused| refused.what)
    }

    #[test]
    fn a_prefix_has_its_own_addresses_and_no_others() {
        let prefix = |text: &str, length| Prefix {
            address: text.parse().unwrap(),
            length,
        };
        let has = |prefix: Prefix, text: &str| prefix.contains(text.parse().unwrap());
        assert!(has(prefix("fd00:1::", 48), "fd00:1:0:ffff::1"));
        assert!(!has(prefix("fd00:1::", 48), "fd00:1:1::1"));
        assert!(has(prefix("127.0.0.0", 8), "127.255.0.1"));
        assert!(!has(prefix("127.0.0.0", 8), "128.0.0.1"));
        assert!(!has(prefix("127.0.0.0", 8), "::1"));
        assert!(has(prefix("::", 0), "ff::1") && !has(prefix("::", 0), "1.1.1.1"));
        assert!(has(prefix("10.0.0.1", 32), "10.0.0.1"));
        assert!(!has(prefix("10.0.0.1", 32), "10.0.0.0"));
    }

    #[test]
    fn one_wrong_route_refuses_the_whole_table() {
        assert_eq!(
            read(vec![route("a", 1), route("b", 2)])
                .unwrap()
                .routes
                .len(),
            2
        );
        let with = |change: fn(&mut v1::Route)| {
            let mut wrong = route("b", 2);
            change(&mut wrong);
            read(vec![route("a", 1), wrong]).unwrap_err()
        };
        type Change = fn(&mut v1::Route);
        let cases: [(Change, &str); 10] = [
            (
                |it| it.route_id = "a".to_owned(),
                "two routes have one id, or none",
            ),
            (|it| it.route_id.clear(), "two routes have one id, or none"),
            (|it| it.listen_port = 0, "the port is never opened"),
            (|it| it.listen_port = 25, "the port is never opened"),
            (|it| it.listen_port = 65_537, "the port is never opened"),
            (
                |it| it.protocol_hint = "udp".to_owned(),
                "it has no protocol that is known",
            ),
            (
                |it| it.proxy_protocol = "v9".to_owned(),
                "it has no protocol that is known",
            ),
            (
                |it| it.backends[0].address = "::1".to_owned(),
                "an instance is where none may be",
            ),
            (
                |it| it.backends[0].address = "name".to_owned(),
                "an instance has no address",
            ),
            (|it| it.backends[0].port = 0, "an instance has no address"),
        ];
        for (change, what) in cases {
            assert_eq!(with(change), what);
        }
        let many = (1..=10_001).map(|number| route(&number.to_string(), number + 1_000));
        assert_eq!(read(many.collect()), Err("there are too many routes"));
    }

    #[test]
    fn what_is_not_served_here_is_said_and_harms_nobody() {
        let mut tls = route("b", 443);
        tls.protocol_hint = "tls_passthrough".to_owned();
        tls.hostname = "a.example.com".to_owned();
        let table = read(vec![route("a", 1), tls]).unwrap();
        assert_eq!(table.routes.len(), 1);
        assert_eq!(table.unserved, [("b".to_owned(), "unsupported")]);
    }

    #[test]
    fn of_two_that_want_the_same_the_older_has_it_and_the_others_are_served() {
        let tls = |id: &str, name: &str| v1::Route {
            protocol_hint: "tls_passthrough".to_owned(),
            hostname: name.to_owned(),
            ..route(id, 443)
        };
        let mut routes = vec![
            route("a", 1),
            route("b", 2),
            route("c", 1),
            tls("d", "a.example.com"),
            tls("e", "a.example.com"),
            tls("f", "b.example.com"),
        ];
        let unserved = [
            ("c", "bind_failed"),
            ("d", "unsupported"),
            ("e", "bind_failed"),
            ("f", "unsupported"),
        ];
        let unserved = unserved.map(|(id, why)| (id.to_owned(), why));
        // In whichever order they come.
        for _ in 0..routes.len() {
            let table = read(routes.clone()).unwrap();
            let served: Vec<&str> = table.routes.values().map(|it| &*it.id).collect();
            assert_eq!(served, ["a", "b"]);
            assert_eq!(table.unserved, unserved);
            routes.rotate_left(1);
        }
        // One that this edge cannot serve keeps what is its own as well.
        routes[0].proxy_protocol = "v2".to_owned();
        let table = read(routes).unwrap();
        let served: Vec<&str> = table.routes.values().map(|it| &*it.id).collect();
        assert_eq!((served, table.unserved.len()), (vec!["b"], 5));
    }
}
