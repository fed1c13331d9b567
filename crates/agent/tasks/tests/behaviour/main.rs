//! What the scheduler does, one situation at a time.
//!
//! Uses only what a driver can use. Next: `desk` for how a test speaks to it,
//! and `../simulation` for all situations at once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests"
)]

mod dependencies;
mod desk;
mod giving_way;
mod order;
mod recovery;
mod refusals;
mod work;
