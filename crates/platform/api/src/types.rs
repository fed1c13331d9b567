//! The objects of the interface: what is sent and what is answered.
//!
//! Data only. Requests refuse fields they do not know; answers may gain fields
//! within a major version. Words of lifecycles are texts with a listed
//! spelling, so that this crate does not depend on who decides them.
//! Next: the file of each resource, and `operation` for who uses what.

mod access;
mod admin;
mod app;
mod common;
mod deploy;
mod history;
mod instance;
mod meta;
mod network;
mod node;
mod org;
mod policy;
mod release;
mod secret;
mod volume;

pub use access::*;
pub use admin::*;
pub use app::*;
pub use common::*;
pub use deploy::*;
pub use history::*;
pub use instance::*;
pub use meta::*;
pub use network::*;
pub use node::*;
pub use org::*;
pub use policy::*;
pub use release::*;
pub use secret::*;
pub use volume::*;
