//! The PostgreSQL to measure with: the one we are given, or one of our own.

use std::env;

use anyhow::Result;
use fluffy_ledger::{Ledger, PostgresAddress};
use fluffy_test_kit::{FreshDatabase, POSTGRES_ENV, PrivatePostgres};
use tempfile::TempDir;

use super::load::signed;

/// A server that nobody else uses while we measure.
pub(super) struct Server {
    own: Option<PrivatePostgres>,
}

impl Server {
    /// The server that the environment names, else one that lives as long.
    pub(super) fn find() -> Result<Self> {
        let given = env::var(POSTGRES_ENV).is_ok_and(|url| !url.is_empty());
        let own = (!given).then(PrivatePostgres::start).transpose()?;
        Ok(Self { own })
    }

    /// An empty ledger in a database of its own.
    pub(super) fn open(&self) -> Result<Place> {
        let database = match &self.own {
            Some(own) => FreshDatabase::create_in(own)?,
            None => FreshDatabase::create()?,
        };
        let address: PostgresAddress = database.url().parse()?;
        let trust = tempfile::tempdir()?;
        Ok(Place {
            ledger: Ledger::open_postgres(&address, signed(trust.path()))?,
            database,
            _trust: trust,
        })
    }
}

/// A database with a ledger in it, and its key and checkpoints in a folder.
pub(super) struct Place {
    pub(super) ledger: Ledger,
    pub(super) database: FreshDatabase,
    _trust: TempDir,
}
