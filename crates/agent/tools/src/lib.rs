//! What the model can call, and all of a call but the deciding and the running.
//!
//! The kernel takes a call through the gates in one order: [`registry`] checks
//! it against its schema and says what it needs ([`foreign`] for tools that are
//! not built in), [`turn`] orders the calls of a turn, [`budget`] counts; then workflow and policy decide, elsewhere. What
//! only reads is done by [`native`]; what changes files goes as a request to the
//! [`runner`], a program inside a sandbox, which edits with [`edit`]. What comes
//! back passes [`sanitise`] on its way to the model, a no is a [`refusal`].
//!
//! Never decides, never runs a command, never writes outside a sandbox. Start
//! reading in `registry.rs`, then `call.rs`.

#![forbid(unsafe_code)]

pub mod arguments;
pub mod budget;
pub mod built_in;
pub mod call;
pub mod edit;
pub mod foreign;
pub mod native;
pub mod paths;
pub mod refusal;
pub mod registry;
pub mod runner;
pub mod sanitise;
mod schema;
pub mod turn;

pub use call::Call;
pub use paths::ProjectPaths;
pub use refusal::Refusal;
pub use registry::{Checked, Registry};
