//! The traits through which the layers meet.
//!
//! The agent, the plugins and the platform never depend on each other; what
//! one offers to another is one of the four traits here, wired together in
//! `front/cli`. Every method that has an effect takes a [`Permit`] by value:
//! without a recorded decision there is nothing to call it with.
//!
//! No logic lives here. A type belongs here only if two layers exchange it.
//!
//! [`Permit`]: fluffy_policy::Permit

pub mod channel;
pub mod isolation;
pub mod model;
pub mod tool;

use std::future::Future;
use std::pin::Pin;

pub use channel::Channel;
pub use isolation::{Isolation, Sandbox};
pub use model::ModelProvider;
pub use tool::ToolSource;

/// A future that may be sent between threads, as trait objects need it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
