//! Every source file says at its top what it is for.
//!
//! Checks only that the header is there; that it is true is for the reviewer.

use std::path::Path;

use anyhow::{Context, Result};

use crate::step::Outcome;
use crate::workspace::Workspace;

/// Checks all Rust files of the workspace.
pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    let mut files = workspace.files("crates", ".rs")?;
    files.extend(workspace.files("dev", ".rs")?);
    let mut problems = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        problems.extend(problem(Path::new(&workspace.shown(file)), &text));
    }
    let note = format!("{} files have their header", files.len());
    Ok(Outcome::from_problems(&problems, note))
}

fn problem(file: &Path, text: &str) -> Option<String> {
    let first = text.lines().next().unwrap_or_default();
    let words = first.strip_prefix("//! ").map_or("", str::trim);
    words.is_empty().then(|| {
        format!(
            "{}:1: starts without a header; say in `//! …` what the file is for",
            file.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_header_is_named() {
        let file = Path::new("a.rs");
        assert_eq!(problem(file, "//! What it is for.\n"), None);
        for text in ["", "use std::fs;\n//! late\n", "//!\n", "//! \n", "// no\n"] {
            let found = problem(file, text).unwrap();
            assert!(found.starts_with("a.rs:1: "), "{text:?}: {found}");
        }
    }
}
