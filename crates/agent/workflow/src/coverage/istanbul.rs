//! `coverage-summary.json`: counts per file, no single lines.
//!
//! Enough for the budget, never enough to say that a refactoring is covered.
//! See [`crate::coverage`].

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Count, Coverage, FileCoverage, ParseCoverageError, malformed};
use crate::results::workspace_path;

pub(super) fn parse(root: &str, text: &str) -> Result<Coverage, ParseCoverageError> {
    let files: BTreeMap<String, Summary> =
        serde_json::from_str(text).map_err(|error| malformed(&error.to_string()))?;
    let mut coverage = Coverage::default();
    for (path, summary) in files {
        // The total is what we add up ourselves, from files that are ours.
        if let Some(path) = workspace_path(root, &path).filter(|_| path != "total") {
            let count = Count {
                found: summary.lines.total,
                hit: summary.lines.covered,
            };
            if count.hit > count.found {
                return Err(malformed("more lines are covered than there are"));
            }
            coverage.files.insert(path, FileCoverage::Count(count));
        }
    }
    Ok(coverage)
}

#[derive(Deserialize)]
struct Summary {
    lines: Lines,
}

#[derive(Deserialize)]
struct Lines {
    total: u64,
    covered: u64,
}
