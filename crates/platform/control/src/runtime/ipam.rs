//! Addresses: which there are, who has them, and which must rest first.
//!
//! Every node has a range of the cluster's IPv6 prefix, every instance one
//! address of its node's range; public IPv4 addresses come from the operator's
//! ranges. An address that was given back rests before it is given again, by
//! the times of events. Never gives one address to two.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use fluffy_base::Timestamp;
use serde::{Deserialize, Serialize};

/// How long an instance's or a public address rests.
pub const REST: Duration = Duration::from_secs(24 * 3600);

/// How long a node's range rests.
pub const NODE_REST: Duration = Duration::from_secs(30 * 24 * 3600);

/// The most addresses of one range that are looked at.
const LARGEST_RANGE: u128 = 1 << 20;

/// The most ranges for nodes.
const MOST_NODES: u128 = 1 << 16;

/// The cluster's IPv6 prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prefix {
    base: u128,
    length: u32,
}

impl Prefix {
    /// Reads `fd12:3456::/48`; its length is from 16 to 110.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, length) = text.split_once('/')?;
        let length: u32 = length.parse().ok()?;
        let base = address.parse::<Ipv6Addr>().ok()?.to_bits();
        let mask = u128::MAX.checked_shl(128 - length.clamp(16, 110))?;
        ((16..=110).contains(&length) && base & !mask == 0).then_some(Self { base, length })
    }

    /// The first address, and how many bits all have in common.
    #[must_use]
    pub fn whole(self) -> (Ipv6Addr, u32) {
        (Ipv6Addr::from_bits(self.base), self.length)
    }

    /// How long the prefix of a node's range is: 16 bits longer, at least 64.
    #[must_use]
    pub fn node_length(self) -> u32 {
        (self.length + 16).max(64)
    }

    /// How many nodes there can be.
    #[must_use]
    pub fn nodes(self) -> u128 {
        (1 << (self.node_length() - self.length).min(64)).min(MOST_NODES)
    }

    /// How many addresses a node's range has for instances.
    #[must_use]
    pub fn instances_per_node(self) -> u128 {
        self.range().saturating_sub(self.first()).min(LARGEST_RANGE)
    }

    /// The node's own address, which names its range.
    fn node(self, index: u128) -> u128 {
        self.base + index * self.range() + self.own()
    }

    fn range(self) -> u128 {
        1 << (128 - self.node_length())
    }

    /// The place of a node's own address; the first one of a range means any
    /// router, and is used only where addresses are few.
    fn own(self) -> u128 {
        u128::from(self.node_length() < 126)
    }

    fn first(self) -> u128 {
        self.own() + 1
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", Ipv6Addr::from_bits(self.base), self.length)
    }
}

/// The addresses of one kind: those that are taken and those that rest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Book {
    taken: BTreeMap<u128, ()>,
    resting: BTreeMap<u128, Timestamp>,
    queue: VecDeque<(Timestamp, u128)>,
}

impl Book {
    /// Whether an address can be given at this time.
    #[must_use]
    pub fn is_free(&self, address: u128, now: Timestamp) -> bool {
        let resting = self.resting.get(&address);
        !self.taken.contains_key(&address) && resting.is_none_or(|until| *until <= now)
    }

    /// How many are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken.len()
    }

    /// How many rest at this time.
    #[must_use]
    pub fn resting(&self, now: Timestamp) -> usize {
        self.resting.values().filter(|until| **until > now).count()
    }

    /// Everything that is taken.
    pub fn addresses(&self) -> impl Iterator<Item = u128> {
        self.taken.keys().copied()
    }

    pub(crate) fn take(&mut self, address: u128, now: Timestamp) {
        self.sweep(now);
        self.resting.remove(&address);
        self.taken.insert(address, ());
    }

    pub(crate) fn give_back(&mut self, address: u128, now: Timestamp, rest: Duration) {
        self.sweep(now);
        if self.taken.remove(&address).is_some() {
            let until = now.after(rest);
            self.resting.insert(address, until);
            self.queue.push_back((until, address));
        }
    }

    /// Forgets who has rested; all of one book rest equally long.
    fn sweep(&mut self, now: Timestamp) {
        while let Some((until, address)) = self.queue.front().copied()
            && until <= now
        {
            self.queue.pop_front();
            if self.resting.get(&address) == Some(&until) {
                self.resting.remove(&address);
            }
        }
    }
}

/// All addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ipam {
    /// Where nodes and instances get theirs.
    pub prefix: Option<Prefix>,
    /// The operator's public ranges, each from and to.
    pub public: Vec<(Ipv4Addr, Ipv4Addr)>,
    /// Those of nodes.
    pub nodes: Book,
    /// Those of instances.
    pub instances: Book,
    /// The public ones.
    pub ipv4: Book,
    /// Where the search for a node's next address begins.
    next: BTreeMap<u128, u128>,
}

/// How far the addresses of one kind are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// Which kind: `node`, `instance` or `ipv4`.
    pub category: &'static str,
    /// How many there are.
    pub size: u64,
    /// How many are taken.
    pub taken: u64,
    /// How many rest before they are given again.
    pub resting: u64,
}

impl Ipam {
    /// How far each kind is used at this time; instances in the ranges of the
    /// nodes that there are.
    #[must_use]
    pub fn uses(&self, now: Timestamp) -> [Use; 3] {
        let whole = |many: u128| u64::try_from(many).unwrap_or(u64::MAX);
        let count = |many: usize| u64::try_from(many).unwrap_or(u64::MAX);
        let of = |category, size, book: &Book| Use {
            category,
            size,
            taken: count(book.taken()),
            resting: count(book.resting(now)),
        };
        let each = |prefix: Prefix| whole(prefix.instances_per_node());
        let each = self.prefix.map_or(0, each);
        let nodes = self.prefix.map_or(0, |prefix| whole(prefix.nodes()));
        let instances = each.saturating_mul(count(self.nodes.taken()));
        [
            of("node", nodes, &self.nodes),
            of("instance", instances, &self.instances),
            of("ipv4", self.public_size(), &self.ipv4),
        ]
    }

    /// A free address for a node.
    #[must_use]
    pub fn node(&self, now: Timestamp) -> Option<Ipv6Addr> {
        let prefix = self.prefix?;
        let mut all = (0..prefix.nodes()).map(|index| prefix.node(index));
        let free = all.find(|address| self.nodes.is_free(*address, now));
        free.map(Ipv6Addr::from_bits)
    }

    /// A free address of a node's range that is not among `given`.
    #[must_use]
    pub fn instance(&self, node: Ipv6Addr, given: &[Ipv6Addr], now: Timestamp) -> Option<Ipv6Addr> {
        let prefix = self.prefix?;
        let (node, many) = (node.to_bits(), prefix.instances_per_node());
        let next = self.next.get(&node).copied().unwrap_or(0);
        let mut all = (0..many).map(|step| node + 1 + (next + step) % many);
        let free = all.find(|address| {
            self.instances.is_free(*address, now)
                && !given.iter().any(|given| given.to_bits() == *address)
        });
        free.map(Ipv6Addr::from_bits)
    }

    /// A free public address.
    #[must_use]
    pub fn public(&self, now: Timestamp) -> Option<Ipv4Addr> {
        let ranges = self.public.iter();
        let mut all = ranges.flat_map(|(from, to)| from.to_bits()..=to.to_bits());
        let free = all.find(|address| self.ipv4.is_free(u128::from(*address), now));
        free.map(Ipv4Addr::from_bits)
    }

    /// How many public addresses there are.
    #[must_use]
    pub fn public_size(&self) -> u64 {
        let ranges = self.public.iter();
        ranges
            .map(|(from, to)| u64::from(to.to_bits().saturating_sub(from.to_bits())) + 1)
            .sum()
    }

    pub(crate) fn take_instance(
        &mut self,
        node: Option<Ipv6Addr>,
        address: Ipv6Addr,
        now: Timestamp,
    ) {
        self.instances.take(address.to_bits(), now);
        if let Some((node, prefix)) = node.zip(self.prefix) {
            let node = node.to_bits();
            let place = address.to_bits().wrapping_sub(node);
            self.next.insert(node, place % prefix.instances_per_node());
        }
    }

    pub(crate) fn forget_node(&mut self, node: Ipv6Addr, now: Timestamp) {
        self.next.remove(&node.to_bits());
        self.nodes.give_back(node.to_bits(), now, NODE_REST);
    }
}

/// Reads `203.0.113.0/28`, `203.0.113.4-203.0.113.9` or one address.
#[must_use]
pub fn ipv4_range(text: &str) -> Option<(Ipv4Addr, Ipv4Addr)> {
    if let Some((from, to)) = text.split_once('-') {
        let (from, to): (Ipv4Addr, Ipv4Addr) = (from.parse().ok()?, to.parse().ok()?);
        return (from <= to).then_some((from, to));
    }
    let (address, length) = text.split_once('/').unwrap_or((text, "32"));
    let (address, length): (Ipv4Addr, u32) = (address.parse().ok()?, length.parse().ok()?);
    let rest = u32::MAX.checked_shr(length).unwrap_or(0);
    ((8..=32).contains(&length) && address.to_bits() & rest == 0)
        .then(|| (address, Ipv4Addr::from_bits(address.to_bits() | rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros(second * 1_000_000)
    }

    #[test]
    fn a_small_prefix_gives_each_node_three_addresses() {
        let mut ipam = Ipam {
            prefix: Prefix::parse("fd00::/110"),
            ..Ipam::default()
        };
        let node = ipam.node(at(0)).unwrap();
        ipam.nodes.take(node.to_bits(), at(0));
        assert_ne!(ipam.node(at(0)), Some(node));
        let mut given = Vec::new();
        while let Some(address) = ipam.instance(node, &given, at(0)) {
            given.push(address);
        }
        assert_eq!(given.len(), 3);
        for address in &given {
            ipam.take_instance(Some(node), *address, at(0));
        }
        assert_eq!(ipam.instance(node, &[], at(1)), None);
        ipam.instances.give_back(given[1].to_bits(), at(1), REST);
        assert_eq!(ipam.instance(node, &[], at(2)), None, "it rests");
        assert_eq!(ipam.instance(node, &[], at(1 + 24 * 3600)), Some(given[1]));
    }

    #[test]
    fn ranges_are_read_strictly() {
        assert_eq!(Prefix::parse("fd00::1/48"), None);
        assert_eq!(Prefix::parse("fd00::/111"), None);
        assert_eq!(Prefix::parse("fd00::"), None);
        assert_eq!(Prefix::parse("fd00::/48").unwrap().to_string(), "fd00::/48");
        let four = ipv4_range("203.0.113.4/30").unwrap();
        assert_eq!(
            four,
            (Ipv4Addr::new(203, 0, 113, 4), Ipv4Addr::new(203, 0, 113, 7))
        );
        assert_eq!(ipv4_range("203.0.113.5/30"), None);
        assert_eq!(ipv4_range("203.0.113.9-203.0.113.4"), None);
        assert_eq!(
            ipv4_range("203.0.113.9").unwrap().0,
            Ipv4Addr::new(203, 0, 113, 9)
        );
    }
}
