//! Layered configuration with the origin of every key.
//!
//! Layers, highest first: flags, `FLUFFY_*` variables, the project's file, the
//! user's file, defaults. What comes with a repository is data: it may name
//! test commands and lower budgets, nothing else, until a person reviewed it.
//! Nothing here loosens security: that is what policy is for.
//!
//! Read [`keys`] for what exists, [`settings`] for how it is resolved,
//! [`mod@load`] for the files, [`paths`] for where our own files live.

#![forbid(unsafe_code)]

pub mod env;
pub mod keys;
pub mod load;
pub mod paths;
pub mod problem;
pub mod project;
pub mod reference;
pub mod settings;
pub mod values;

mod file;
mod parse;
mod suggest;

pub use env::Environment;
pub use load::{LoadError, load};
pub use paths::{Paths, PathsError};
pub use problem::{Place, Problem, Rejected};
pub use settings::{Entry, FileText, Flag, Origin, ProjectText, Settings, Sources};
pub use values::{
    Budget, Channels, ColorMode, KeySource, ProcessEngine, Provider, Tasks, Tests, Values, Wire,
};
