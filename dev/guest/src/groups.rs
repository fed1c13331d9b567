//! Control groups of sandboxes, as the kernel shows them.
//!
//! Looks for itself, past the code under test.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fluffy_base::id::SandboxId;

const TREE: &str = "/sys/fs/cgroup";

/// All groups of sandboxes, anywhere in the tree.
pub(crate) fn all() -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(Path::new(TREE), &mut found);
    found
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with("fluffy-") {
            found.push(path);
        } else {
            collect(&path, found);
        }
    }
}

/// A file of a group; nothing where the group has no such file.
pub(crate) fn file(group: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(group.join(name)).ok()?;
    Some(text.trim().to_owned())
}

/// A number of a file with a name and a number in each line.
pub(crate) fn field(group: &Path, name: &str, field: &str) -> Option<u64> {
    file(group, name)?
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(found, _)| *found == field)
        .and_then(|(_, number)| number.parse().ok())
}

/// Makes a group as a launcher does that died at once, beside another group.
pub(crate) fn make_orphan(beside: &Path) -> Result<PathBuf> {
    let namespace = std::fs::read_link("/proc/self/ns/pid").context("no pid namespace")?;
    let namespace: String = namespace
        .to_string_lossy()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    // No process has this number, and none started in the first tick.
    let name = format!(
        "fluffy-dead.{namespace}.4194303.1-{}",
        SandboxId::generate()
    );
    let orphan = beside.with_file_name(name);
    std::fs::create_dir(&orphan).context("cannot make a group")?;
    Ok(orphan)
}
