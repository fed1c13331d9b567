//! The conformance suite on SQLite, and what only a file can show.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod conformance;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use fluffy_ledger::{Ledger, LedgerOptions};
use tempfile::TempDir;

use conformance::tally::{self, Tally};
use conformance::{LIMIT, Place, append_many, conformance};

struct Directory(TempDir);

impl Place for Directory {
    fn fresh() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn address(&self) -> String {
        self.0.path().join("ledger").to_str().unwrap().to_owned()
    }

    fn open_at(address: &str) -> Ledger {
        Ledger::open(Path::new(address), LedgerOptions::default()).unwrap()
    }
}

conformance!(Directory);

fn view_file(place: &Directory) -> PathBuf {
    Path::new(&place.address()).join("views/tally.db")
}

#[test]
fn a_rebuild_finds_and_repairs_a_changed_view() {
    let place = Directory::fresh();
    let ledger = place.open();
    append_many(&ledger, "a", 20);
    let projector = tally::start(&ledger, Tally::new());
    projector.wait_for_blocking(tally::NAME, 20, LIMIT).unwrap();
    let view = rusqlite::Connection::open(view_file(&place)).unwrap();
    view.execute("UPDATE tally SET events = 99", []).unwrap();
    assert_eq!(tally::counted(&projector), 99);
    let rebuilt = projector.rebuild(tally::NAME).unwrap();
    assert!(!rebuilt.is_equal(), "{rebuilt:?}");
    assert_eq!(tally::counted(&projector), 20);
    append_many(&ledger, "a", 1);
    projector.wait_for_blocking(tally::NAME, 21, LIMIT).unwrap();
    assert!(projector.rebuild(tally::NAME).unwrap().is_equal());
}

#[test]
fn a_view_that_is_no_database_is_folded_again() {
    let place = Directory::fresh();
    let ledger = place.open();
    append_many(&ledger, "a", 20);
    tally::start(&ledger, Tally::new()).stop();
    fs::write(view_file(&place), [7; 10_000]).unwrap();
    let projector = tally::start(&ledger, Tally::new());
    projector.wait_for_blocking(tally::NAME, 20, LIMIT).unwrap();
    assert_eq!(tally::counted(&projector), 20);
}

#[test]
fn a_view_of_another_ledger_starts_again() {
    let (place, other) = (Directory::fresh(), Directory::fresh());
    let ledger = place.open();
    append_many(&ledger, "a", 20);
    let projector = tally::start(&ledger, Tally::new());
    projector.wait_for_blocking(tally::NAME, 20, LIMIT).unwrap();
    projector.stop();
    let ledger = other.open();
    append_many(&ledger, "b", 30);
    fs::create_dir(Path::new(&other.address()).join("views")).unwrap();
    fs::copy(view_file(&place), view_file(&other)).unwrap();
    let projector = tally::start(&ledger, Tally::new());
    projector.wait_for_blocking(tally::NAME, 30, LIMIT).unwrap();
    assert_eq!(
        tally::counts(&projector),
        BTreeMap::from([("b".to_owned(), 30)])
    );
}
