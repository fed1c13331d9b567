//! The process tier for real, the same cases on each of its engines.
//!
//! Every test starts its own launcher process with its own state directory.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

/// The same case on every engine that makes sandboxes here.
macro_rules! on_every_engine {
    ($($name:ident)*) => {
        mod native {
            $(#[tokio::test] async fn $name() { super::$name(fluffy_sandbox::plan::Engine::Native).await; })*
        }
        mod bwrap {
            $(#[tokio::test] async fn $name() { super::$name(fluffy_sandbox::plan::Engine::Bwrap).await; })*
        }
        mod reduced {
            $(#[tokio::test] async fn $name() { super::$name(fluffy_sandbox::plan::Engine::Reduced).await; })*
        }
    };
}

mod commands;
mod files;
mod hidden;
mod kit;
mod lifecycle;
mod limits;
mod plugin;
mod pool;
