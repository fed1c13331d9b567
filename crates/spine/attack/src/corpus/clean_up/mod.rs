//! Outliving the sandbox.
//!
//! One file per attempt, each named here twice.

mod daemon;
mod deaf_daemon;
mod deep_tree;
mod file_holder;
mod home_left;
mod key_left;
mod locked_tree;
mod moving_target;
mod queue_left;
mod segment_left;
mod stopped_process;
mod temporary_left;

use crate::attack::Attack;

/// The attempts of this family.
pub(crate) const ATTACKS: &[Attack] = &[
    daemon::ATTACK,
    deaf_daemon::ATTACK,
    deep_tree::ATTACK,
    file_holder::ATTACK,
    home_left::ATTACK,
    key_left::ATTACK,
    locked_tree::ATTACK,
    moving_target::ATTACK,
    queue_left::ATTACK,
    segment_left::ATTACK,
    stopped_process::ATTACK,
    temporary_left::ATTACK,
];
