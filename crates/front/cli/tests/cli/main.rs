//! The `fluffy` binary as a user meets it: exit code, output, errors, files.
//!
//! One test binary with a module per command, so that it is linked once. No
//! test sees the home of the person who runs it, and none calls into the
//! product's own code where a user would type a command. `site.rs` is the
//! prepared home and project; start with `tamper.rs` for the attacks.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    missing_docs,
    reason = "tests"
)]

mod acp;
mod agent;
mod apply;
mod audit;
mod check;
mod config;
mod confined;
mod container;
mod decide;
mod demo;
mod doctor;
mod egress;
mod explain;
mod extension;
#[expect(dead_code, reason = "the tests beside the code use the rest")]
#[path = "../../src/command/agent/connect/fake.rs"]
mod fake;
mod init;
mod kills;
mod layer;
mod links;
mod making;
mod manifest;
mod pin;
mod platform;
mod plugin;
mod proof;
#[path = "../../src/command/agent/show/sample.rs"]
mod sample;
mod sandbox;
mod scenario;
mod secrets;
mod selftest;
mod session;
mod shell;
mod site;
mod table;
mod tamper;
mod terminal;
mod wasm;
mod work;
