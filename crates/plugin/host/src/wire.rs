//! The published contracts as Rust, generated from the files in `proto/`.
//!
//! Authors read those files; this is what the host speaks. A test makes the
//! code anew and compares, so building the product needs no `protoc`.

#![allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    missing_debug_implementations,
    missing_docs,
    reason = "generated"
)]

/// Our own contracts.
#[rustfmt::skip]
#[path = "wire/fluffy_plugin_v1.rs"]
pub mod v1;

/// The services of go-plugin itself.
#[rustfmt::skip]
#[path = "wire/plugin.rs"]
pub mod go_plugin;

/// The health service of gRPC.
#[rustfmt::skip]
#[path = "wire/grpc_health_v1.rs"]
pub mod health;
