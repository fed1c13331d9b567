//! Simulated nodes that speak the real node protocol, for tests.
//!
//! They enrol, take plans, walk instances along and report it, run toy
//! commands, keep their last plan, and misbehave on request. No instance is
//! ever run; never part of the product. Start with [`Node`], which is one node;
//! [`Machine`] is what it simulates, [`Behaviour`] what goes wrong.

mod behaviour;
mod control;
mod home;
mod machine;
mod node;
mod program;
mod shell;
mod task;

pub use behaviour::Behaviour;
pub use control::{Command, Controller, control};
pub use fluffy_api::node::join::{Enrolling, signing_request};
pub use home::{Credentials, Home, enrol};
pub use machine::{Kept, Machine, SecretError};
pub use node::{Handle, Node, Order, Setup, Status, now_ms};
pub use program::run;
