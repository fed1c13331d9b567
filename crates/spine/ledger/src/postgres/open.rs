//! How a ledger in PostgreSQL is opened.
//!
//! Only the way in; everything after it goes through the same handle as with
//! the embedded engine, see [`crate::ledger`].

use fluffy_base::id::LedgerId;

use super::{PostgresAddress, Store};
use crate::chain::Genesis;
use crate::engine::Engine;
use crate::ledger::{Ledger, LedgerOptions, OpenLedgerError};

impl Ledger {
    /// Opens the ledger in a PostgreSQL database, creating it if there is
    /// none. Any number of processes may have it open at once.
    ///
    /// # Errors
    /// The server can't be reached, the database can't hold a ledger, or the
    /// signing key can't be used.
    pub fn open_postgres(
        address: &PostgresAddress,
        options: LedgerOptions,
    ) -> Result<Self, OpenLedgerError> {
        let genesis = Genesis {
            ledger_id: LedgerId::generate(),
            created_at: options.clock.now(),
        };
        let store = Store::open(address, &genesis)?;
        Self::start(Engine::Postgres(store), options)
    }
}
