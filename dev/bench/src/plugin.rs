//! Calls of plugins, beside the bare way of doing the same.

mod go;

use anyhow::Result;

use crate::figure::Figure;

/// All figures of plugins.
///
/// # Errors
/// A plugin could not be built or started.
pub(crate) fn run() -> Result<Vec<Figure>> {
    go::run()
}
