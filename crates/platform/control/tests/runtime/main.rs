//! What runs, where, and what is wanted: through the doors that a server uses.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod commands;
mod history;
mod limits;
mod mounts;
mod nodes;
mod outages;
mod placement;
mod quotas;
mod rollouts;
mod simulation;
mod transitions;
mod world;
