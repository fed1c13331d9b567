//! Runs policy extensions in a JavaScript worker process.
//!
//! An extension is a file `.fluffy/policy.d/NAME.ts`:
//!
//! ```ts
//! export const actions = ["fs.write", "net.*"]; // left out: all actions
//! export function evaluate(request) {
//!   if (request.resource.endsWith(".lock")) return { verdict: "deny", reason: "generated" };
//!   return "pass"; // or "allow", "deny", "require_review"
//! }
//! ```
//!
//! `evaluate` is a pure function of its request: it runs in an engine that
//! nobody used before, without I/O, randomness or memory of earlier calls, and
//! its only clock is the request's own moment. Whatever it does other than
//! return a verdict in time means that the request is denied.
//!
//! [`ScriptHost`] is the side of the policy engine, [`worker_main`] the side of
//! the script. Types are removed in the worker too, because a hostile source
//! may exhaust the parser. This crate never decides anything.
//!
//! [`compare_main`] is a third side: it removes the types of a project's own
//! file, so that two versions of it can be compared.

mod actions;
mod compare;
mod confine;
mod engine;
mod host;
mod keeper;
mod problem;
mod process;
mod reading;
mod strip;
mod wire;
mod worker;

pub use compare::{MAX_COMPARED, compare_main, without_types};
pub use host::{ExtensionReport, ExtensionSource, LoadExtensionsError, MAX_EXTENSIONS, ScriptHost};
pub use keeper::Health;
pub use problem::{Position, Problem};
pub use process::{Limits, WorkerCommand};
pub use strip::MAX_SOURCE;
pub use worker::worker_main;
