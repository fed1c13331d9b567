//! All files below a directory that a search looks at, in one stable order.
//!
//! Names in byte order, a directory's files where its own name stands. What
//! vanishes or cannot be read on the way is counted, never followed.

use fluffy_layer::{NodeKind, ReadViewError, SeenDirectory, Side, TreePath, View};
use ignore::overrides::Override;

use super::Scope;
use super::ignores::{Hidden, Ignores, as_path};

/// The most files one search looks at.
pub(super) const MAX_FILES: usize = 1_000_000;

/// What a search looks at.
pub(super) struct Walk<'a> {
    pub(super) view: &'a View,
    pub(super) scope: Scope<'a>,
    pub(super) hidden: Hidden,
    /// Globs that files must match, and that directories may not be excluded by.
    pub(super) globs: Override,
}

/// A regular file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) path: TreePath,
    pub(super) side: Side,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Walked {
    pub(super) files: Vec<Found>,
    /// Directories that could not be read.
    pub(super) unreadable: usize,
    /// Whether there were more than are looked at.
    pub(super) is_cut: bool,
}

impl Walk<'_> {
    /// The files below a directory, or the root.
    pub(super) fn files(&self, start: Option<&TreePath>) -> Result<Walked, ReadViewError> {
        let mut walked = Walked::default();
        let start = self.view.directory(start)?;
        let ignores = Ignores::above(self.view, start.path())?;
        let mut open = vec![(start, ignores)];
        // Listed last is looked at first, so directories go in reverse.
        while let Some((directory, ignores)) = open.pop() {
            if self.scope.is_stopped() {
                walked.is_cut = true;
                break;
            }
            let inner = self.directory(&directory, &ignores, &mut walked)?;
            open.extend(inner.into_iter().rev());
            if walked.files.len() >= MAX_FILES {
                walked.files.truncate(MAX_FILES);
                walked.is_cut = true;
                break;
            }
        }
        walked.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(walked)
    }

    /// Looks at one directory; gives those in it.
    fn directory(
        &self,
        directory: &SeenDirectory,
        ignores: &Ignores,
        walked: &mut Walked,
    ) -> Result<Vec<(SeenDirectory, Ignores)>, ReadViewError> {
        let Ok(entries) = self.view.list(directory) else {
            walked.unreadable += 1;
            return Ok(Vec::new());
        };
        let ignores = ignores.within(self.view, directory.path(), &entries);
        let mut inner = Vec::new();
        for entry in entries {
            let is_directory = entry.kind == NodeKind::Directory;
            if !is_directory && entry.kind != NodeKind::File {
                continue;
            }
            let Ok(path) = TreePath::below(directory.path(), &entry.name) else {
                walked.unreadable += 1;
                continue;
            };
            if ignores.leaves_out(&path, entry.kind, self.hidden)
                || self.globs.matched(as_path(&path), is_directory).is_ignore()
            {
                continue;
            }
            if !is_directory {
                let side = entry.side;
                walked.files.push(Found { path, side });
            } else if let Ok(Some(entered)) = self.view.enter(directory, &entry) {
                inner.push((entered, ignores.clone()));
            } else {
                walked.unreadable += 1;
            }
        }
        Ok(inner)
    }
}
