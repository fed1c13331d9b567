//! Runs plugins: each in its sandbox, with exactly what it was granted.
//!
//! A plugin is an untrusted process that speaks one of three protocols; all
//! three end in a [`Connection`]. What a plugin asks back goes through
//! [`Services`], and there through policy. Never starts anything outside a
//! sandbox, never decides. Start reading with [`connection`].

pub mod archive;
pub mod connection;
pub mod go_plugin;
mod guarded;
pub mod log;
pub mod mcp;
pub mod plugins;
mod private;
pub mod room;
pub mod sealed;
pub mod services;
pub mod settings;
pub mod shelf;
pub mod skill;
pub mod tree;
pub mod wasm;
pub mod wire;

pub use connection::{CallPluginError, Connection, Gone, StartPluginError};
pub use services::{ServiceError, Services};
