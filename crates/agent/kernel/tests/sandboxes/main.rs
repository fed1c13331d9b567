//! What sessions do in sandboxes, with a real launcher and real layers.
//!
//! `pausing` is what happens when there are too few slots or too little memory.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod kit;
mod pausing;
