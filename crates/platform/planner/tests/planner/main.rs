//! The planner from outside: what it does by hand-made states, and thousands
//! of random worlds.
//!
//! `ground` builds states, `server` stands in for the control plane;
//! `behaviour` holds the single cases, `simulation` the random ones.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests"
)]

mod behaviour;
mod ground;
mod server;
mod simulation;
