//! Where PostgreSQL's programs are.
//!
//! Installs nothing itself: `cargo xtask test` does, and the errors say so.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Where Debian and Ubuntu keep one folder per major version.
const DEBIAN_ROOT: &str = "/usr/lib/postgresql";

/// The programs we call; a client-only installation has not got all of them.
const PROGRAMS: [&str; 3] = ["initdb", "postgres", "psql"];

/// The folder that holds the newest installed server's programs.
pub(super) fn programs() -> Result<PathBuf> {
    let versions = fs::read_dir(DEBIAN_ROOT).into_iter().flatten().flatten();
    let mut folders: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    folders.sort();
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    let newest_first = folders.into_iter().rev().map(|(_, folder)| folder);
    newest_first
        .chain(std::env::split_paths(&search_path))
        .find(|folder| has_all(folder))
        .with_context(|| {
            format!(
                "PostgreSQL's server programs are neither in {DEBIAN_ROOT}/*/bin nor on PATH; \
                 run `cargo xtask test`, or install them: apt-get install postgresql"
            )
        })
}

fn has_all(folder: &Path) -> bool {
    PROGRAMS.iter().all(|name| folder.join(name).is_file())
}
