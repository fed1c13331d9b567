//! What `wasmtime` makes of the published contract of plugins.
//!
//! Generated at compile time from the WIT files that authors read; nothing is
//! written by hand here. Next: `plugin/host.rs` for the imports' other side.

#![allow(
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    clippy::all,
    reason = "generated code"
)]

wasmtime::component::bindgen!({
    path: "../../plugin/host/wit",
    world: "tool-plugin",
    imports: { default: async | trappable },
    exports: { default: async },
});
