//! Using up what others need; every attempt stops by itself.
//!
//! One file per attempt, each named here twice.

mod descriptors;
mod disk_fill;
mod endless_line;
mod fork_bomb;
mod many_files;
mod memory_children;
mod memory_file;
mod memory_heap;
mod memory_segment;
mod output_flood;
mod sparse_file;
mod temporary_files;
mod thread_bomb;
mod time_deaf;
mod time_spin;

use crate::attack::Attack;

/// The attempts of this family.
pub(crate) const ATTACKS: &[Attack] = &[
    descriptors::ATTACK,
    disk_fill::ATTACK,
    endless_line::ATTACK,
    fork_bomb::ATTACK,
    many_files::ATTACK,
    memory_children::ATTACK,
    memory_file::ATTACK,
    memory_heap::ATTACK,
    memory_segment::ATTACK,
    output_flood::ATTACK,
    sparse_file::ATTACK,
    temporary_files::ATTACK,
    thread_bomb::ATTACK,
    time_deaf::ATTACK,
    time_spin::ATTACK,
];
