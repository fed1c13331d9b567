//! The container tier: Docker or Podman as another launcher.
//!
//! Speaks the same protocol as the native launcher; only who makes the
//! namespaces differs. No sandbox ever sees the engine's socket, and nothing is
//! made without an owner's label, by which a later start sweeps it.
//! Next: `launcher` for the questions, `shape` for what a container is.

pub mod address;
pub mod probe;
pub mod worker;

mod carry;
mod counters;
mod creation;
mod engine;
mod filter;
mod host_image;
mod images;
mod launcher;
mod sandbox;
mod shape;
mod spaces;
mod tree;
