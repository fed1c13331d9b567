//! What sessions do in sandboxes, with a real launcher and real layers.
//!
//! `pausing` is what happens when there are too few slots or too little memory,
//! `foreign` are tools that are not built in, called by a whole `session`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod foreign;
mod kit;
mod pausing;
mod session;
