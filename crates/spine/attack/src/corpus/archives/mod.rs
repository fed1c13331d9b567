//! Archives and planted entries that point outside.
//!
//! One file per attempt, each named here twice.

mod bomb;
mod colliding_names;
mod planted_pipe;
mod planted_socket;
mod tar_device;
mod tar_hard_link;
mod tar_link_merge;
mod tar_link_write;
mod tar_setuid;
mod tar_traversal;
mod whiteout_attribute;
mod whiteout_device;
mod whiteout_name;

use crate::attack::Attack;

/// The attempts of this family.
pub(crate) const ATTACKS: &[Attack] = &[
    bomb::ATTACK,
    colliding_names::ATTACK,
    planted_pipe::ATTACK,
    planted_socket::ATTACK,
    tar_device::ATTACK,
    tar_hard_link::ATTACK,
    tar_link_merge::ATTACK,
    tar_link_write::ATTACK,
    tar_setuid::ATTACK,
    tar_traversal::ATTACK,
    whiteout_attribute::ATTACK,
    whiteout_device::ATTACK,
    whiteout_name::ATTACK,
];
