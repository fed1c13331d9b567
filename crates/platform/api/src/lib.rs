//! The platform's interfaces: what can be asked, answered and refused.
//!
//! Plain data. One table of operations drives routing, the OpenAPI document,
//! authorization, rate limits and the map to the command line. Decides nothing
//! and does no I/O without its features. Start with [`operation`]; what server
//! and node say to each other is in `node`.

#![forbid(unsafe_code)]

#[cfg(feature = "client")]
pub mod client;
pub mod exec;
#[cfg(feature = "node")]
pub mod node;
pub mod openapi;
pub mod operation;
pub mod problem;
pub mod request;
pub mod types;
pub mod version;

pub use operation::{Operation, Spec};
pub use problem::Problem;
