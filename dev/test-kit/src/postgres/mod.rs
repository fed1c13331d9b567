//! A real PostgreSQL for tests: one shared server, or one to break on purpose,
//! and a pooler in front of it.
//!
//! Never touches a server it did not start. Go to `server` for starting,
//! stopping and killing, `pooler` for PgBouncer, `database` for a fresh database per test, `install`
//! for where the programs are.

mod database;
mod install;
mod pooler;
mod server;

pub use database::{FreshDatabase, POSTGRES_ENV};
pub use pooler::PrivatePooler;
pub use server::{Network, PrivatePostgres};
