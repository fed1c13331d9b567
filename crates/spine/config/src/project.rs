//! Finds the project a command is run in.

use std::path::{Path, PathBuf};

/// The directory of a project's own files.
pub const DIRECTORY: &str = ".fluffy";

/// What marks the root of a project.
const MARKS: [&str; 2] = [DIRECTORY, ".git"];

/// The nearest directory, from `start` upwards, with `.fluffy` or `.git`.
///
/// `start` should be absolute; what cannot be looked at counts as not there.
#[must_use]
pub fn find_root(start: &Path) -> Option<PathBuf> {
    let marked = |directory: &&Path| {
        let there = |mark| directory.join(mark).symlink_metadata().is_ok();
        MARKS.into_iter().any(there)
    };
    start.ancestors().find(marked).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_nearest_mark_wins() {
        let scratch = tempfile::tempdir().unwrap();
        let outer = scratch.path().join("outer");
        let inner = outer.join("a/inner");
        fs::create_dir_all(inner.join("src/deep")).unwrap();
        fs::create_dir_all(outer.join(".git")).unwrap();
        assert_eq!(find_root(&inner.join("src/deep")), Some(outer.clone()));
        fs::create_dir(inner.join(".fluffy")).unwrap();
        assert_eq!(find_root(&inner.join("src/deep")), Some(inner.clone()));
        fs::remove_dir(inner.join(".fluffy")).unwrap();
        // A worktree's `.git` is a file.
        fs::write(inner.join(".git"), "gitdir: x").unwrap();
        assert_eq!(find_root(&inner), Some(inner));
    }
}
