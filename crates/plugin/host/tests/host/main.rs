//! Plugins in real sandboxes, under a real policy, with a real ledger.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod contracts;
mod go_plugin;
mod go_plugin_hostile;
mod go_plugin_types;
mod kit;
mod mcp;
mod plugins;
mod providing;
mod published;
mod room;
mod services;
mod settings;
mod wasm;
