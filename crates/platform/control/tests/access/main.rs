//! Who may do what: the whole of access, through the doors that a server uses.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod approvals;
mod bindings;
mod commands;
mod enrolment;
mod fixtures;
mod ground;
mod idempotency;
mod isolation;
mod keys;
mod login;
mod matrix;
mod races;
