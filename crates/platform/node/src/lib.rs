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

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The time in milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

/// The time by which is waited: that of [`now_ms`] when this process began,
/// and what passed since then. Whoever sets the clock does not change it.
fn steady_ms() -> u64 {
    static BEGAN: OnceLock<(u64, u64)> = OnceLock::new();
    let up = up_ms();
    let (clock, then) = *BEGAN.get_or_init(|| (now_ms(), up));
    clock.saturating_add(up.saturating_sub(then))
}

/// How long the machine has been up, asleep or not, in milliseconds.
fn up_ms() -> u64 {
    let up = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(up.tv_sec), u64::try_from(up.tv_nsec));
    let millis = nanos.unwrap_or(0) / 1_000_000;
    let whole = seconds.unwrap_or(0).saturating_mul(1_000);
    whole.saturating_add(millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_by_which_is_waited_begins_with_the_clock_and_passes_with_the_machines() {
        let (before, first) = (now_ms(), steady_ms());
        assert!(first.abs_diff(before) < 60_000, "{first} {before}");
        let (then, from) = (steady_ms(), up_ms());
        while up_ms() < from + 20 {
            std::thread::yield_now();
        }
        let passed = steady_ms() - then;
        assert!((20..60_000).contains(&passed), "{passed}");
    }
}
