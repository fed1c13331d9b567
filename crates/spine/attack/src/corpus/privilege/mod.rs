//! Becoming more than an ordinary user of the sandbox.
//!
//! One file per attempt, each named here twice.

mod become_root;
mod capabilities;
mod clone_namespace;
mod core_pattern;
mod enter_namespace;
mod keyring_read;
mod limit_host;
mod make_device;
mod namespace_mount;
mod new_privileges;
mod other_namespaces;
mod raw_memory;
mod read_memory;
mod release_agent;
mod signal_host;
mod steal_descriptor;
mod sysrq;
mod trace_child;
mod trace_host;
mod user_namespace;

use crate::attack::Attack;

/// The attempts of this family.
pub(crate) const ATTACKS: &[Attack] = &[
    become_root::ATTACK,
    capabilities::ATTACK,
    clone_namespace::ATTACK,
    core_pattern::ATTACK,
    enter_namespace::ATTACK,
    keyring_read::ATTACK,
    limit_host::ATTACK,
    make_device::ATTACK,
    namespace_mount::ATTACK,
    new_privileges::ATTACK,
    other_namespaces::ATTACK,
    raw_memory::ATTACK,
    read_memory::ATTACK,
    release_agent::ATTACK,
    signal_host::ATTACK,
    steal_descriptor::ATTACK,
    sysrq::ATTACK,
    trace_child::ATTACK,
    trace_host::ATTACK,
    user_namespace::ATTACK,
];
