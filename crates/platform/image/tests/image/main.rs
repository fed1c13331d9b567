//! Images at a real registry, at hostile ones, and in files of this machine.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod access;
mod attacks;
mod local;
mod pack;
mod real;
mod root;
mod sample;
mod site;
mod store;
mod tokens;
