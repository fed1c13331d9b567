//! The WASM tier: modules run with fuel, a deadline and a memory cap.
//!
//! [`WasmTier::prepare`] compiles a program within [`Bounds`];
//! [`WasmTier::run`] runs it as a WASI command, [`WasmTier::call`] calls one
//! of its plain functions, each in a fresh store within [`Limits`]. A program
//! reaches nothing that its [`Command`] does not name: no directory, no
//! variable, no network at all; it can read the two clocks and get random
//! bytes. [`PluginTier`] does the same for plugins, which also have a host to
//! ask. Start reading with [`tier`].

mod cache;
mod call;
pub mod command;
pub mod examine;
mod guest;
pub mod limits;
mod meter;
mod output;
pub mod plugin;
pub mod program;
mod run;
pub mod stop;
mod ticker;
pub mod tier;

pub use call::{CallError, Returned};
pub use command::{Access, Call, Command, Directory, Value};
pub use limits::{Bounds, Limits};
pub use plugin::PluginTier;
pub use program::{PrepareError, Program};
pub use run::{Ended, Finished, RunError};
pub use stop::{Stop, TrapKind};
pub use tier::{StartTierError, Usage, WasmTier};
