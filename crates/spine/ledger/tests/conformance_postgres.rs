//! The conformance suite on PostgreSQL; the server is real.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod conformance;

use fluffy_ledger::{Ledger, LedgerOptions, PostgresAddress};
use fluffy_test_kit::FreshDatabase;

use conformance::{Place, conformance};

struct Database(FreshDatabase);

impl Place for Database {
    fn fresh() -> Self {
        Self(FreshDatabase::create().unwrap())
    }

    fn address(&self) -> String {
        self.0.url().to_owned()
    }

    fn open_at(address: &str) -> Ledger {
        let address: PostgresAddress = address.parse().unwrap();
        Ledger::open_postgres(&address, LedgerOptions::default()).unwrap()
    }
}

conformance!(Database);
