//! Runs instances on one machine as its plan says, and reports what became of them.
//!
//! [`Agent`] holds the connection to the server and one actor per instance;
//! what an actor does next is decided by one pure function ([`decide`]), and a
//! [`driver`] does it. Everything that must outlive the process is in the
//! node's folder ([`home`], [`store`], [`spool`]). No plan is ever guessed: the
//! last one rules until a newer one comes. Start with [`agent`].

pub mod agent;
mod audit;
pub mod decide;
mod doctor;
pub mod driver;
mod exec;
mod facts;
mod guard;
mod health;
pub mod home;
pub mod images;
mod instance;
mod metrics;
mod otlp;
pub mod privileges;
mod session;
mod ship;
pub mod spool;
pub mod store;
mod supervise;
mod upkeep;
mod workload;

pub use agent::{Agent, Handle, RunError, Settings, Status, claim};
pub use audit::{Audited, Held, audit, audit_process};
pub use doctor::{Check, Verdict, doctor};
pub use facts::{facts, machine};
pub use metrics::OtherFigures;
pub use otlp::{Collector, CollectorError};
pub use supervise::{Running, keep_running};

use std::time::{SystemTime, UNIX_EPOCH};

/// The time in milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}
