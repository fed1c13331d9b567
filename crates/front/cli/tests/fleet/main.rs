//! Servers of one database as an operator starts them: three processes of the
//! built `fluffy`, a real PostgreSQL, and simulated nodes in processes of their
//! own. `kit` has all of them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod exec;
mod faults;
mod kit;
mod registry;
mod streams;

/// Nothing, unless a test started this program to be nodes.
#[test]
fn nodes_in_a_process_of_their_own() {
    kit::be_nodes();
}
