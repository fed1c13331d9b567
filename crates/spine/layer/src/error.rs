//! The one error of touching a file: what was tried, where, and why not.
//!
//! Operations have their own enums and carry this one inside; none of them
//! repeats the reason, which is its source.

use std::io;
use std::path::{Path, PathBuf};

use crate::path::TreePath;
use crate::tree::Tree;

/// Something could not be done with a file of the store or the project.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} `{}`", path.display())]
pub struct FileError {
    doing: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl FileError {
    /// Where it happened; names that could mislead are escaped.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why, as the operating system says it.
    #[must_use]
    pub fn reason(&self) -> &io::Error {
        &self.source
    }

    /// Whether the disk or the quota is full; nothing is lost then.
    #[must_use]
    pub fn is_full_disk(&self) -> bool {
        matches!(
            self.source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }
}

/// Says what was tried where, on the way out with `?`.
pub(crate) trait Explain<T> {
    /// What was tried on a plain path.
    fn at(self, doing: &'static str, path: &Path) -> Result<T, FileError>;

    /// What was tried on a path in a tree.
    fn within(self, doing: &'static str, tree: &Tree, path: &TreePath) -> Result<T, FileError>;
}

impl<T, E: Into<io::Error>> Explain<T> for Result<T, E> {
    fn at(self, doing: &'static str, path: &Path) -> Result<T, FileError> {
        self.map_err(|source| FileError {
            doing,
            path: path.to_owned(),
            source: source.into(),
        })
    }

    fn within(self, doing: &'static str, tree: &Tree, path: &TreePath) -> Result<T, FileError> {
        self.map_err(|source| FileError {
            doing,
            path: tree.shown(Some(path)),
            source: source.into(),
        })
    }
}
