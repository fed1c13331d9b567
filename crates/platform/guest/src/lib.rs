//! The link between a node and `fluffy-init`, the first process of an instance.
//!
//! One byte stream carries everything: control messages, logs, commands. What
//! is here has no I/O of its own and is used by both ends; what the other end
//! sends is hostile and bounded. Start with [`link::Link`]; `message` and
//! `config` are what is said over it, and `host` is the node's end.

#![forbid(unsafe_code)]

pub mod config;
pub mod link;
pub mod log;
pub mod message;

#[cfg(feature = "host")]
pub mod host;

pub use config::GuestConfig;
pub use link::{Event, Link, LinkError};
pub use message::{FromGuest, FromHost};

/// The newest version of the protocol, and the oldest that is understood.
pub const PROTOCOL: message::Versions = message::Versions { min: 1, max: 1 };
