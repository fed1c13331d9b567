//! Views are what their events say, in whichever way they are folded.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests"
)]

#[path = "../../control/tests/runtime/history.rs"]
mod history;
mod rebuild;
#[path = "../../control/tests/runtime/world.rs"]
mod world;

use fluffy_test_kit::campaign;

/// At full length, and for speed, `cargo xtask bench control` runs the same
/// with a million events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_are_equal_however_they_are_folded() {
    let home = tempfile::tempdir().unwrap();
    let events = campaign(10_000, 100_000);
    let found = rebuild::run(41, events, home.path()).await;
    assert!(found.events > events);
    assert!(!found.reads.is_empty());
}
