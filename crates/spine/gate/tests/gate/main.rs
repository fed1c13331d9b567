//! The gate with a real ledger, real files and real script workers.
//!
//! `authorize` is about decisions and their records, `replay` about judging
//! them again, `approve` about tokens, `layers` about the files and hot reload,
//! `pins` about the reviewed copy, `killed` about crashes, `update` about
//! putting a policy in force, `extensions` about scripts. Start in `support`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod approve;
mod authorize;
mod extensions;
mod killed;
mod layers;
mod pins;
mod replay;
mod support;
mod update;
