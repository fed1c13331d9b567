//! Seeing what was never handed in.
//!
//! One file per attempt, each named here twice.

mod core_dump;
mod environment;
mod folder_descriptors;
mod home_secrets;
mod host_processes;
mod host_segment;
mod host_shared_memory;
mod host_temporary;
mod inherited_descriptors;
mod kernel_log;
mod other_environments;
mod sibling;
mod terminal_injection;
mod terminal_paste;

use crate::attack::Attack;

/// The attempts of this family.
pub(crate) const ATTACKS: &[Attack] = &[
    core_dump::ATTACK,
    environment::ATTACK,
    folder_descriptors::ATTACK,
    home_secrets::ATTACK,
    host_processes::ATTACK,
    host_segment::ATTACK,
    host_shared_memory::ATTACK,
    host_temporary::ATTACK,
    inherited_descriptors::ATTACK,
    kernel_log::ATTACK,
    other_environments::ATTACK,
    sibling::ATTACK,
    terminal_injection::ATTACK,
    terminal_paste::ATTACK,
];
