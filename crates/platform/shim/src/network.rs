//! An instance's network: one pair of interfaces, routed, nothing bridged.
//!
//! Neighbours are permanent on both sides, so nothing is ever discovered.
//! What may pass is `firewall`'s; without that no interface is made.

use std::fs;
use std::io;
use std::net::Ipv6Addr;

use crate::Order;
use crate::firewall;
use crate::netlink::{CREATE, EXCLUSIVE, Message, Netlink, REPLACE};

/// The hardware address of the host's end, the same everywhere: nobody but
/// this one instance ever sees it.
const GATEWAY: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// The interface inside.
const INSIDE: &str = "eth0";

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const NEW_NEIGHBOUR: u16 = 28;

const UP: u32 = 1;

/// The host's end, made by the shim: the pair, whose other end is born inside.
pub(crate) fn outside(order: &Order, inside: i32) -> io::Result<()> {
    // First the rules, then what they are about.
    firewall::covers(&order.interface)?;
    firewall::ensure()?;
    let mut socket = Netlink::routing()?;
    let mut pair = link(NEW_LINK, CREATE | EXCLUSIVE, 0, 0);
    pair.text(IFLA_IFNAME, &order.interface);
    pair.bytes(IFLA_ADDRESS, &GATEWAY);
    pair.number(IFLA_MTU, order.mtu);
    pair.nested(IFLA_LINKINFO, |info| {
        info.text(IFLA_INFO_KIND, "veth");
        info.nested(IFLA_INFO_DATA, |data| {
            data.nested(VETH_INFO_PEER, |peer| {
                peer.content.extend([0; 16]);
                peer.text(IFLA_IFNAME, INSIDE);
                peer.bytes(IFLA_ADDRESS, &order.mac);
                peer.number(IFLA_MTU, order.mtu);
                peer.number(IFLA_NET_NS_PID, inside.unsigned_abs());
            });
        });
    });
    socket.ask(&pair)?;
    quiet(&order.interface)?;
    let index = socket.index(&order.interface)?;
    socket.ask(&link(NEW_LINK, 0, index, UP))?;
    socket.address(index, order.gateway, 64)?;
    socket.neighbour(index, order.address, order.mac)?;
    socket.route(index, Some(order.address), None)
}

/// Removes the host's end, and with it the other. None is fine.
pub(crate) fn remove(interface: &str) -> io::Result<()> {
    let mut socket = Netlink::routing()?;
    let removed = match socket.index(interface) {
        Ok(index) => socket.ask(&link(DELETE_LINK, 0, index, 0)),
        Err(error) => Err(error),
    };
    match removed {
        // It also goes by itself, when the instance's end does.
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        removed => removed,
    }
}

/// The instance's end, made inside.
pub(crate) fn inside(order: &Order) -> io::Result<()> {
    let mut socket = Netlink::routing()?;
    let own = socket.index("lo")?;
    socket.ask(&link(NEW_LINK, 0, own, UP))?;
    quiet(INSIDE)?;
    let index = socket.index(INSIDE)?;
    socket.ask(&link(NEW_LINK, 0, index, UP))?;
    socket.address(index, order.address, 128)?;
    socket.neighbour(index, order.gateway, GATEWAY)?;
    socket.route(index, None, Some(order.gateway))
}

/// Takes nothing from routers, makes no address of its own, asks nobody.
fn quiet(interface: &str) -> io::Result<()> {
    for (name, value) in [
        ("accept_ra", "0"),
        ("autoconf", "0"),
        ("addr_gen_mode", "1"),
        ("accept_dad", "0"),
    ] {
        fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/{name}"), value)?;
    }
    Ok(())
}

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_PID: u16 = 19;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const INET6: u8 = 10;

/// A message with a `struct ifinfomsg`.
fn link(kind: u16, flags: u16, index: u32, up: u32) -> Message {
    let mut message = Message::new(kind, flags);
    message.content.extend([0; 4]);
    message.content.extend(index.to_ne_bytes());
    message.content.extend(up.to_ne_bytes());
    message.content.extend(up.to_ne_bytes());
    message
}

impl Netlink {
    /// The number of an interface.
    fn index(&mut self, name: &str) -> io::Result<u32> {
        let mut message = link(GET_LINK, 0, 0, 0);
        message.text(IFLA_IFNAME, name);
        let answer = self.talk(&message, 0)?;
        let index = answer.get(4..8).and_then(|bytes| bytes.first_chunk::<4>());
        index
            .map(|bytes| u32::from_ne_bytes(*bytes))
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn address(&mut self, index: u32, address: Ipv6Addr, prefix: u8) -> io::Result<()> {
        const NO_DETECTION: u8 = 0x02;
        const PERMANENT: u8 = 0x80;
        let mut message = Message::new(NEW_ADDRESS, CREATE | REPLACE);
        message
            .content
            .extend([INET6, prefix, NO_DETECTION | PERMANENT, 0]);
        message.content.extend(index.to_ne_bytes());
        message.bytes(IFA_ADDRESS, &address.octets());
        self.ask(&message)
    }

    fn neighbour(&mut self, index: u32, address: Ipv6Addr, mac: [u8; 6]) -> io::Result<()> {
        const PERMANENT: u16 = 0x80;
        let mut message = Message::new(NEW_NEIGHBOUR, CREATE | REPLACE);
        message.content.extend([INET6, 0, 0, 0]);
        message.content.extend(index.to_ne_bytes());
        message.content.extend(PERMANENT.to_ne_bytes());
        message.content.extend([0, 0]);
        message.bytes(NDA_DST, &address.octets());
        message.bytes(NDA_LLADDR, &mac);
        self.ask(&message)
    }

    /// A route to one address, or to everything.
    fn route(
        &mut self,
        index: u32,
        to: Option<Ipv6Addr>,
        gateway: Option<Ipv6Addr>,
    ) -> io::Result<()> {
        const MAIN: u8 = 254;
        const STATIC: u8 = 4;
        const UNIVERSE: u8 = 0;
        const UNICAST: u8 = 1;
        let length = if to.is_some() { 128 } else { 0 };
        let mut message = Message::new(NEW_ROUTE, CREATE | REPLACE);
        let head = [INET6, length, 0, 0, MAIN, STATIC, UNIVERSE, UNICAST];
        message.content.extend(head);
        message.content.extend([0; 4]);
        if let Some(to) = to {
            message.bytes(RTA_DST, &to.octets());
        }
        message.number(RTA_OIF, index);
        if let Some(gateway) = gateway {
            message.bytes(RTA_GATEWAY, &gateway.octets());
        }
        self.ask(&message)
    }
}
