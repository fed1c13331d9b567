//! Calls into parts of the kernel that nobody needs.
//!
//! One file per attempt, each named here twice.

mod add_key;
mod bpf;
mod calls_32_bit;
mod calls_x32;
mod filter_tables;
mod io_ports;
mod io_uring;
mod kexec;
mod load_module;
mod odd_sockets;
mod packet_socket;
mod perf;
mod restart;
mod segments;
mod userfaultfd;
mod watch_files;

use crate::attack::Attack;

/// The attempts of this family.
pub(crate) const ATTACKS: &[Attack] = &[
    add_key::ATTACK,
    bpf::ATTACK,
    calls_32_bit::ATTACK,
    calls_x32::ATTACK,
    filter_tables::ATTACK,
    io_ports::ATTACK,
    io_uring::ATTACK,
    kexec::ATTACK,
    load_module::ATTACK,
    odd_sockets::ATTACK,
    packet_socket::ATTACK,
    perf::ATTACK,
    restart::ATTACK,
    segments::ATTACK,
    userfaultfd::ATTACK,
    watch_files::ATTACK,
];
