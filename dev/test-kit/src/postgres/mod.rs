//! A real PostgreSQL for tests: one shared server, or one to break on purpose.
//!
//! Never touches a server it did not start. Go to `server` for starting,
//! stopping and killing, `database` for a fresh database per test, `install`
//! for where the programs are.

mod database;
mod install;
mod server;

pub use database::{FreshDatabase, POSTGRES_ENV};
pub use server::PrivatePostgres;
