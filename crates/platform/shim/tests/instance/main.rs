//! Instances for real: a shim, namespaces, init, a static busybox as image.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests"
)]

mod disk;
mod ends;
mod execs;
mod image;
mod kit;
mod logs;
mod reach;
mod walls;
