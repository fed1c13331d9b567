//! Plugins: what their hosts cost, beside what they are built on.
//!
//! One file per host. A program of this one is every worker.

mod go;
mod stage;
mod wasm;
mod whole;

use anyhow::Result;

use crate::figure::Figure;

/// All figures of plugins.
///
/// # Errors
/// A plugin could not be built or started.
pub(crate) fn run() -> Result<Vec<Figure>> {
    let mut figures = go::run()?;
    figures.extend(wasm::run()?);
    figures.extend(whole::run()?);
    Ok(figures)
}
