//! The isolation ladder: untrusted code runs here, and nowhere else.
//!
//! One small launcher process outside all sandboxes starts each of them as a
//! sibling, only from named templates and only with paths inside the roots it
//! was started with. Nothing here decides whether something may run: every
//! effect takes a `Permit`. Next: `plan` for what a sandbox is, `launcher` for
//! who makes it, `init` for what runs inside.

pub mod client;
pub mod failure;
pub mod foreign;
pub mod guard;
pub mod launcher;
pub mod own;
pub mod owner;
pub mod plan;
pub mod probe;
pub mod protocol;
pub mod seatbelt;
pub mod seccomp;
pub mod template;
pub mod throwaway;
pub mod watch;
pub mod worker;

mod bwrap;
mod cgroup;
mod exec;
mod init;
mod sys;
mod tree;
mod wall;
