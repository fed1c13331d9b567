//! Reaching somebody outside.
//!
//! One file per attempt, each named here twice.

mod abstract_socket;
mod agent_socket;
mod bus_socket;
mod engine_socket;
mod name_lookup;
mod project_socket;
mod proxy_address;
mod proxy_host_header;
mod proxy_name_tricks;
mod proxy_no_server_name;
mod proxy_plain;
mod proxy_server_name;
mod proxy_smuggling;
mod proxy_stranger;
mod raw_socket;
mod route_out;
mod tcp_loopback;
mod tcp_loopback6;
mod tcp_own_address;
mod udp;

use crate::attack::Attack;

/// The attempts of this family.
pub(crate) const ATTACKS: &[Attack] = &[
    abstract_socket::ATTACK,
    agent_socket::ATTACK,
    bus_socket::ATTACK,
    engine_socket::ATTACK,
    name_lookup::ATTACK,
    project_socket::ATTACK,
    proxy_address::ATTACK,
    proxy_host_header::ATTACK,
    proxy_name_tricks::ATTACK,
    proxy_no_server_name::ATTACK,
    proxy_plain::ATTACK,
    proxy_server_name::ATTACK,
    proxy_smuggling::ATTACK,
    proxy_stranger::ATTACK,
    raw_socket::ATTACK,
    route_out::ATTACK,
    tcp_loopback::ATTACK,
    tcp_loopback6::ATTACK,
    tcp_own_address::ATTACK,
    udp::ATTACK,
];
