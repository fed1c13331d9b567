//! Leaving code that runs later, outside.
//!
//! One file per attempt, each named here twice.

mod cron;
mod editor_tasks;
mod git_config;
mod git_hook;
mod git_include;
mod git_lookalike;
mod nested_git_hook;
mod own_settings;
mod post_install;
mod session_startup;
mod setuid_file;
mod shell_entry;
mod shell_startup;

use crate::attack::Attack;

/// The attempts of this family.
pub(crate) const ATTACKS: &[Attack] = &[
    cron::ATTACK,
    editor_tasks::ATTACK,
    git_config::ATTACK,
    git_hook::ATTACK,
    git_include::ATTACK,
    git_lookalike::ATTACK,
    nested_git_hook::ATTACK,
    own_settings::ATTACK,
    post_install::ATTACK,
    session_startup::ATTACK,
    setuid_file::ATTACK,
    shell_entry::ATTACK,
    shell_startup::ATTACK,
];
