//! The node protocol over real mTLS, with real processes, against attackers.
//!
//! The control side is a double, see `desk`; in `whole` it is the real one. `kit` has the server, members made
//! by hand and the simulated nodes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod attack;
mod blobs;
mod certificate;
mod desk;
mod edge;
mod enrolment;
mod exec;
mod export;
mod kit;
mod process;
mod session;
mod shells;
mod whole;
