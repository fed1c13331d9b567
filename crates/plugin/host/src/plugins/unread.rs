//! What policy keeps unread in folders that a plugin is shown.
//!
//! Policy is asked about every file once, before the plugin starts. Never gives
//! half a list: what cannot be looked at to its end is an error. Links are not
//! followed; where they lead is either shown by itself or not there.

use std::io;
use std::path::{Path, PathBuf};

use fluffy_sandbox::plan::MAX_HIDDEN;

/// The most files and directories that are looked at.
const MAX_ENTRIES: usize = 200_000;

/// Why nobody can say what has to stay unread.
#[derive(Debug, thiserror::Error)]
pub enum FindUnreadError {
    /// A part cannot be looked at.
    #[error("`{}` cannot be looked at", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Too many files.
    #[error("the granted folders have more than {MAX_ENTRIES} files; grant less of the project")]
    TooManyEntries,
    /// More than a sandbox can hide.
    #[error("policy keeps more than {MAX_HIDDEN} of the granted files unread; grant less")]
    TooManyUnread,
}

/// The files below these that may not be read.
pub(super) fn find_unread(
    roots: &[PathBuf],
    may_read: &dyn Fn(&Path) -> bool,
) -> Result<Vec<PathBuf>, FindUnreadError> {
    let mut unread = Vec::new();
    let mut entries = 0;
    let mut waiting: Vec<PathBuf> = roots.to_vec();
    while let Some(path) = waiting.pop() {
        entries += 1;
        if entries > MAX_ENTRIES {
            return Err(FindUnreadError::TooManyEntries);
        }
        let fails = |source| FindUnreadError::File {
            path: path.clone(),
            source,
        };
        let found = std::fs::symlink_metadata(&path).map_err(fails)?;
        if found.is_dir() {
            for entry in std::fs::read_dir(&path).map_err(fails)? {
                waiting.push(entry.map_err(fails)?.path());
            }
        } else if !found.is_symlink() && !may_read(&path) {
            if unread.len() == MAX_HIDDEN {
                return Err(FindUnreadError::TooManyUnread);
            }
            unread.push(path);
        }
    }
    unread.sort_unstable();
    Ok(unread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_asked_about_and_no_link_followed() {
        let folder = tempfile::tempdir().unwrap();
        let below = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(below("docs/deep")).unwrap();
        for name in ["docs/a", "docs/.env", "docs/deep/.env", "outside"] {
            std::fs::write(below(name), "").unwrap();
        }
        std::os::unix::fs::symlink("../outside", below("docs/link")).unwrap();
        let may_read = |path: &Path| path.file_name().is_none_or(|name| name != ".env");
        let unread = find_unread(&[below("docs")], &may_read).unwrap();
        assert_eq!(unread, [below("docs/.env"), below("docs/deep/.env")]);
        assert!(find_unread(&[below("nowhere")], &may_read).is_err());
        let all = find_unread(&[below("docs")], &|_| false).unwrap();
        assert_eq!(all.len(), 3);
    }
}
