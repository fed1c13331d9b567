//! A fresh, empty database for one test, in the server that `xtask` started.
//!
//! Never skips a test: without a server it fails, with the reason and the fix.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::install::programs;
use super::server::{PrivatePostgres, run_sql};
use crate::Seed;

/// The variable with the address of the shared server's administrator.
pub const POSTGRES_ENV: &str = "FLUFFY_TEST_POSTGRES";

/// A database that only one test uses, dropped when the value is.
#[derive(Debug)]
pub struct FreshDatabase {
    name: String,
    url: String,
    admin_url: String,
    programs: PathBuf,
}

impl FreshDatabase {
    /// Creates one in the server that [`POSTGRES_ENV`] names.
    ///
    /// # Errors
    /// There is no such server; the text says how to start one.
    pub fn create() -> Result<Self> {
        match std::env::var(POSTGRES_ENV) {
            Ok(url) if !url.is_empty() => Self::create_at(&url),
            _ => bail!(
                "this test needs PostgreSQL and {POSTGRES_ENV} is not set; \
                 run `cargo xtask test --only tests`, or for some tests only \
                 `cargo xtask with-postgres cargo test --package …`"
            ),
        }
    }

    /// Creates one in a server of one's own.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn create_in(postgres: &PrivatePostgres) -> Result<Self> {
        Self::create_at(&postgres.url())
    }

    fn create_at(admin_url: &str) -> Result<Self> {
        let programs = programs()?;
        let name = format!("test_{:016x}", Seed::random().value());
        let url = with_database(admin_url, &name)?;
        run_sql(&programs, admin_url, &format!("create database {name}"))
            .with_context(|| format!("cannot create a database at {admin_url}"))?;
        Ok(Self {
            name,
            url,
            admin_url: admin_url.to_owned(),
            programs,
        })
    }

    /// The address of this database, for any client library.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The name of this database.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs one statement here and returns what it printed.
    ///
    /// # Errors
    /// The server refused it; the text is the server's own.
    pub fn sql(&self, statement: &str) -> Result<String> {
        run_sql(&self.programs, &self.url, statement)
    }
}

impl Drop for FreshDatabase {
    fn drop(&mut self) {
        let statement = format!("drop database if exists {} with (force)", self.name);
        // A killed server cannot drop it; its whole folder goes soon.
        let _ = run_sql(&self.programs, &self.admin_url, &statement);
    }
}

/// The same address with another database.
fn with_database(url: &str, database: &str) -> Result<String> {
    let (scheme, rest) = url
        .split_once("://")
        .with_context(|| format!("`{url}` is not an address of PostgreSQL"))?;
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let server = place.split('/').next().unwrap_or_default();
    let mark = if query.is_empty() { "" } else { "?" };
    Ok(format!("{scheme}://{server}/{database}{mark}{query}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_database_of_an_address_changes() {
        let cases = [
            (
                "postgresql://u@/postgres?host=/tmp/x",
                "postgresql://u@/d?host=/tmp/x",
            ),
            ("postgresql://u:p@h:5432/a", "postgresql://u:p@h:5432/d"),
            ("postgres://h", "postgres://h/d"),
        ];
        for (given, wanted) in cases {
            assert_eq!(with_database(given, "d").unwrap(), wanted);
        }
        assert!(with_database("host=/tmp", "d").is_err());
    }
}
