//! The scale-out engine: several servers over one PostgreSQL database.
//!
//! `address` says where, `settings` and `tls` how, `session` talks to the
//! server, `schema` and `partition` hold the tables, `writer` appends, `store`
//! reads, `view` keeps projections, `signal` wakes other processes. Nothing
//! outside this folder knows SQL of these tables, and nothing here relies on a
//! wake-up arriving.

mod address;
mod cell;
mod columns;
mod failure;
mod open;
mod partition;
mod pool;
mod schema;
mod session;
mod settings;
mod signal;
mod store;
mod tls;
mod view;
mod writer;

#[cfg(test)]
mod tests;

pub use address::{AddressError, PostgresAddress, Way};
pub(crate) use store::Store;
pub use tls::LoadRootsError;
pub(crate) use view::View;
pub(crate) use writer::Writer;

/// Positions and versions as PostgreSQL stores them.
fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
