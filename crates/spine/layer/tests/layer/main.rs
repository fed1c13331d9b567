//! Layers over real projects, written to through real overlays.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod changes;
mod disk;
mod killed;
mod merging;
mod patches;
mod properties;
mod races;
mod refused;
mod snapshots;
mod support;
mod views;
