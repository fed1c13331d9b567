//! A platform moves from files into PostgreSQL, whole or not at all.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

use std::path::Path;
use std::time::{Duration, Instant};

use fluffy_control::State;
use fluffy_ledger::{CopyError, LedgerOptions, PostgresAddress};
use fluffy_server::aside::Kind;
use fluffy_server::loops::lease::Timing;
use fluffy_server::migrate::{MigrateError, migrate};
use fluffy_server::platform::{Founder, Storage};
use fluffy_server::server::{Options, Server};
use fluffy_test_kit::FreshDatabase;
use tempfile::TempDir;

const NOTE: Kind = Kind::new("note");

async fn start(storage: Storage) -> Server {
    let options = Options {
        storage,
        ledger: LedgerOptions::default(),
        founder: Founder::Local,
        timing: Timing::default(),
    };
    Server::start(options).await.unwrap()
}

/// A platform in files, with something beside its ledger.
async fn files(folder: &Path) {
    let server = start(Storage::Directory(folder.to_owned())).await;
    let aside = server.platform().aside();
    aside.put(NOTE, "a", b"kept".to_vec(), None).await.unwrap();
    let life = Some(Duration::from_secs(3600));
    aside.put(NOTE, "b", vec![0; 100_000], life).await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_goes_on_in_a_database_where_it_was_in_files() {
    let database = FreshDatabase::create().unwrap();
    let address: PostgresAddress = database.url().parse().unwrap();
    let folder = TempDir::new().unwrap();
    let missing = migrate(folder.path(), &address).await.unwrap_err();
    assert!(
        matches!(missing, MigrateError::Missing { .. }),
        "{missing:?}"
    );
    files(folder.path()).await;
    let moved = migrate(folder.path(), &address).await.unwrap();
    assert!(moved.head.seq > 0 && moved.entries >= 2, "{moved:?}");
    // Doing it again changes nothing.
    let again = migrate(folder.path(), &address).await.unwrap();
    assert_eq!(again.head, moved.head);
    let storage = Storage::database(address.clone());
    let server = start(storage).await;
    let platform = server.platform();
    let kept = platform.aside().get(NOTE, "a").await.unwrap();
    assert_eq!(kept.unwrap().value, b"kept");
    let long = platform.aside().get(NOTE, "b").await.unwrap();
    assert_eq!(long.unwrap().value.len(), 100_000);
    let orgs = platform
        .sequencer()
        .read(|state: &State| state.access.orgs.len());
    assert_eq!(orgs, 1, "it was not begun anew");
    let rebuilt = platform.rebuild(false).await.unwrap();
    assert!(rebuilt.differ.is_empty(), "{rebuilt:?}");
    // Its loops take the lead there, which is an event.
    let deadline = Instant::now() + Duration::from_secs(120);
    while platform.ledger().head().unwrap().seq == moved.head.seq {
        assert!(Instant::now() < deadline, "nobody takes the lead");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.stop().await;
    // It has gone on there: what is here is not its end any more.
    let late = migrate(folder.path(), &address).await.unwrap_err();
    assert!(
        matches!(late, MigrateError::Copy(CopyError::Occupied)),
        "{late:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_with_another_ledger_is_left_alone() {
    let database = FreshDatabase::create().unwrap();
    let address: PostgresAddress = database.url().parse().unwrap();
    let (one, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    files(one.path()).await;
    files(other.path()).await;
    let moved = migrate(one.path(), &address).await.unwrap();
    let refused = migrate(other.path(), &address).await.unwrap_err();
    assert!(
        matches!(refused, MigrateError::Copy(CopyError::Occupied)),
        "{refused:?}"
    );
    // Still the first one's.
    let again = migrate(one.path(), &address).await.unwrap();
    assert_eq!(again.head, moved.head);
}
