//! The ledger: ours beside the bare engines, with the same rows and batches.
//!
//! Every row of the speed table in the specification. The reference stores
//! the same columns with nothing but a primary key, in batches as large as our
//! own groups were in the round before, and syncs as often. Lengths are those
//! of a quick run; `FLUFFY_CAMPAIGN=full` makes the long ones long.

mod bare;
mod endurance;
mod growth;
mod lag;
mod load;
mod postgres;
mod server;
mod sqlite;
mod verification;

use anyhow::Result;

use crate::figure::Figure;
pub(crate) use endurance::{APPENDER, appender};
use server::Server;

/// All figures of the ledger.
pub(crate) fn run() -> Result<Vec<Figure>> {
    let server = Server::find()?;
    let mut figures = Vec::new();
    for (what, measure) in PARTS {
        eprintln!("  {what} …");
        figures.extend(measure(&server)?);
    }
    Ok(figures)
}

type Part = fn(&Server) -> Result<Vec<Figure>>;

const PARTS: &[(&str, Part)] = &[
    ("appending, SQLite", |_| sqlite::run()),
    ("appending, PostgreSQL", postgres::run),
    ("endurance (E5)", endurance::run),
    ("projection lag", lag::run),
    ("verification", verification::run),
    ("growth", |_| growth::run()),
];
