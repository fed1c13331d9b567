//! What of a project is its own: everything that no ignore file leaves out.
//!
//! What is ignored (build results, caches, installed packages) is written by
//! commands all the time; it is never judged, merged or committed.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use fluffy_layer::{NodeKind, ReadViewError, TreePath, View};
use ignore::overrides::Override;

use super::Scope;
use super::ignores::{Hidden, Ignores};
use super::walk::Walk;

/// The project's own files, hidden ones too, by path.
///
/// # Errors
/// The project cannot be read.
pub fn own_files(view: &View) -> Result<Vec<TreePath>, ReadViewError> {
    let stop = AtomicBool::new(false);
    let walk = Walk {
        view,
        scope: Scope {
            may_read: &|_| true,
            stop: &stop,
        },
        hidden: Hidden::Show,
        globs: Override::empty(),
    };
    let files = walk.files(None)?.files;
    Ok(files.into_iter().map(|found| found.path).collect())
}

/// Tells ignored paths from the others, looking at each directory once.
#[derive(Debug)]
pub struct IgnoredPaths<'a> {
    view: &'a View,
    known: BTreeMap<TreePath, bool>,
    levels: BTreeMap<Option<TreePath>, Option<Ignores>>,
}

impl<'a> IgnoredPaths<'a> {
    /// As the session sees the project now.
    #[must_use]
    pub fn new(view: &'a View) -> Self {
        Self {
            view,
            known: BTreeMap::new(),
            levels: BTreeMap::new(),
        }
    }

    /// Whether a path, or a directory that it is in, is ignored.
    pub fn contains(&mut self, path: &TreePath, kind: NodeKind) -> bool {
        let mut above: Vec<TreePath> = path.ancestors().collect();
        above.reverse();
        above
            .iter()
            .any(|directory| self.leaves_out(directory, NodeKind::Directory))
            || self.leaves_out(path, kind)
    }

    fn leaves_out(&mut self, path: &TreePath, kind: NodeKind) -> bool {
        if let Some(known) = self.known.get(path) {
            return *known;
        }
        let parent = path.parent();
        let view = self.view;
        let level = self.levels.entry(parent.clone()).or_insert_with(|| {
            // A directory that is gone has no ignore files of its own.
            let above = Ignores::above(view, parent.as_ref()).ok()?;
            let entries = view.directory(parent.as_ref());
            let entries = entries.and_then(|directory| view.list(&directory));
            let entries = entries.unwrap_or_default();
            Some(above.within(view, parent.as_ref(), &entries))
        });
        let is_ignored = level
            .as_ref()
            .is_some_and(|level| level.leaves_out(path, kind, Hidden::Show));
        self.known.insert(path.clone(), is_ignored);
        is_ignored
    }
}
