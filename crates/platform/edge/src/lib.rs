//! Takes connections from outside to instances that are ready.
//!
//! Goes by whole routing tables: one is taken whole or refused whole, and what
//! was taken is served again after a restart, with or without a server. Never
//! looks into what it carries. Start with [`Edge`]; `table` says what a table
//! may be, `gate` who is well, `relay` carries, `follow` hears the server.

#![forbid(unsafe_code)]

mod edge;
mod follow;
mod gate;
mod keep;
mod meter;
mod relay;
mod table;

pub use edge::{Edge, Figures, Hearing, Options};
pub use follow::follow;
pub use keep::{Keep, KeepError};
pub use table::{Prefix, RefusedTable};
