//! Reaching files outside by their paths.
//!
//! One file per attempt, each named here twice.

mod bind_mount;
mod change_root;
mod dot_dot;
mod hard_link;
mod lookalike;
mod new_file_system;
mod open_by_handle;
mod open_tree;
mod proc_descriptors;
mod proc_init;
mod proc_root;
mod remount_writable;
mod replace_runner;
mod symlink_chain;
mod symlink_race;
mod symlink_read;
mod symlink_write;
mod uncover;
mod write_beside;
mod write_system;

use crate::attack::Attack;

/// The attempts of this family.
pub(crate) const ATTACKS: &[Attack] = &[
    bind_mount::ATTACK,
    change_root::ATTACK,
    dot_dot::ATTACK,
    hard_link::ATTACK,
    lookalike::ATTACK,
    new_file_system::ATTACK,
    open_by_handle::ATTACK,
    open_tree::ATTACK,
    proc_descriptors::ATTACK,
    proc_init::ATTACK,
    proc_root::ATTACK,
    remount_writable::ATTACK,
    replace_runner::ATTACK,
    symlink_chain::ATTACK,
    symlink_race::ATTACK,
    symlink_read::ATTACK,
    symlink_write::ATTACK,
    uncover::ATTACK,
    write_beside::ATTACK,
    write_system::ATTACK,
];
