//! What a session may not read, found once, so that its commands cannot either.
//!
//! Policy is asked for `fs.read` of every file of the project, ignored ones
//! too; what it does not allow is hidden in every sandbox of the session. Git's
//! own data is left out: what was committed is in it anyway. Decides nothing
//! itself, and never gives half a list: what cannot be looked at to its end, or
//! not be hidden, is an error. Next: `workshop` takes the list.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use fluffy_layer::{
    Entry, FileError, HeldLayer, LayerKind, NodeKind, ReadLayerError, ReadViewError, SeenDirectory,
    TreePath, View,
};
use fluffy_sandbox::plan::MAX_HIDDEN;

use crate::workshop::{Mounts, Premises};

/// The most files and directories that are looked at.
const MAX_ENTRIES: usize = 1_000_000;

/// The paths of a project that no command of a session may open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hidden {
    paths: Vec<PathBuf>,
    entries: usize,
}

impl Hidden {
    /// The paths, each as it is seen inside.
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// How many files and directories policy was asked about.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.entries
    }
}

/// Why nobody can say what has to be hidden, or nothing can hide it.
#[derive(Debug, thiserror::Error)]
pub enum FindHiddenError {
    /// The project is too large to be looked at.
    #[error("the project has more than {limit} files, so not all can be asked about")]
    TooManyEntries {
        /// How many may be looked at.
        limit: usize,
    },
    /// A sandbox can only hide so many.
    #[error("policy keeps {found} paths of the project unread, and {MAX_HIDDEN} can be hidden")]
    TooManyHidden {
        /// How many there are.
        found: usize,
    },
    /// Its name cannot be said.
    #[error("policy keeps `{path}` unread, and a name that is no text cannot be hidden")]
    Unnameable {
        /// Which.
        path: TreePath,
    },
    /// Reduced isolation mounts nothing.
    #[error("policy keeps `{path}` unread, and reduced isolation cannot hide it from commands")]
    NothingHides {
        /// The first of them.
        path: TreePath,
    },
    /// The layer cannot be read.
    #[error(transparent)]
    Layer(#[from] ReadLayerError),
    /// A part of the project cannot be looked at.
    #[error("the project cannot be looked at as a whole")]
    Read(#[from] ReadViewError),
    /// The project cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
}

impl FindHiddenError {
    /// What a person can do about it.
    #[must_use]
    pub fn fix(&self) -> &'static str {
        match self {
            Self::TooManyEntries { .. } => "work in a part of the project, or remove build output",
            Self::TooManyHidden { .. } => {
                "move them into a directory that policy denies as a whole, or allow reading some"
            }
            Self::Unnameable { .. } => "rename it, or allow reading it in the policy",
            Self::NothingHides { .. } => {
                "move it out of the project, allow reading it in the policy, or see \
                 `fluffy doctor` for stronger isolation"
            }
            Self::Layer(_) | Self::Read(_) | Self::File(_) => "make the project readable",
        }
    }
}

/// Asks about every file of a layer's project whether it may be read; the paths
/// are as the premises name the project.
///
/// # Errors
/// Not all could be asked about, or something cannot be hidden.
pub fn find_hidden(
    held: &HeldLayer,
    premises: &Premises,
    may_read: &dyn Fn(&str) -> bool,
) -> Result<Hidden, FindHiddenError> {
    let project = View::of_project(held.layer().project())?;
    let mut search = Search::new(may_read, MAX_ENTRIES);
    search.walk(&project)?;
    // A copy holds what the project had when it was made.
    if held.layer().kind() == LayerKind::Copy {
        search.walk(&held.view()?)?;
    }
    search.add_other_names(&project)?;
    search.conclude(&premises.project, premises.mounts)
}

/// One search, and what it has found.
struct Search<'a> {
    may_read: &'a dyn Fn(&str) -> bool,
    entries: usize,
    limit: usize,
    found: BTreeSet<TreePath>,
}

/// What one walk has learnt of the directories.
#[derive(Default)]
struct Directories {
    /// Those that policy denies.
    denied: Vec<TreePath>,
    /// Those that hold something which may be read.
    open: HashSet<TreePath>,
}

impl Directories {
    /// Something at this path may be read, so what it is in must be seen.
    fn keep_open(&mut self, path: &TreePath) {
        for above in path.ancestors() {
            if !self.open.insert(above) {
                return;
            }
        }
    }
}

impl<'a> Search<'a> {
    fn new(may_read: &'a dyn Fn(&str) -> bool, limit: usize) -> Self {
        Self {
            may_read,
            entries: 0,
            limit,
            found: BTreeSet::new(),
        }
    }

    /// Asks about everything in a view.
    fn walk(&mut self, view: &View) -> Result<(), FindHiddenError> {
        let mut directories = Directories::default();
        let mut waiting = vec![view.directory(None)?];
        while let Some(directory) = waiting.pop() {
            for (entry, path) in self.list(view, &directory)? {
                if &*entry.name == b".git" {
                    directories.keep_open(&path);
                    continue;
                }
                let allowed = self.may_read(&path);
                match entry.kind {
                    NodeKind::Directory => {
                        waiting.extend(view.enter(&directory, &entry)?);
                        if !allowed {
                            directories.denied.push(path);
                        }
                    }
                    _ if allowed => directories.keep_open(&path),
                    // What it leads to is asked about where it is.
                    NodeKind::Symlink => {}
                    _ => {
                        self.found.insert(path);
                    }
                }
            }
        }
        let closed = directories.denied.into_iter();
        let closed = closed.filter(|path| !directories.open.contains(path));
        self.found.extend(closed);
        Ok(())
    }

    /// What is in a directory, counted.
    fn list(
        &mut self,
        view: &View,
        directory: &SeenDirectory,
    ) -> Result<Vec<(Entry, TreePath)>, FindHiddenError> {
        let entries = match view.list(directory) {
            Ok(entries) => entries,
            // Commands run as the same user, with less power.
            Err(error) if is_closed_or_gone(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        self.entries = self.entries.saturating_add(entries.len());
        if self.entries > self.limit {
            let limit = self.limit;
            return Err(FindHiddenError::TooManyEntries { limit });
        }
        let placed = entries.into_iter().filter_map(|entry| {
            // What has too long a path to be named cannot be opened by it.
            let path = TreePath::below(directory.path(), &entry.name).ok()?;
            Some((entry, path))
        });
        Ok(placed.collect())
    }

    fn may_read(&self, path: &TreePath) -> bool {
        match path.resource() {
            Some(resource) => (self.may_read)(&resource),
            None => (self.may_read)(&format!("/{}", String::from_utf8_lossy(path.as_bytes()))),
        }
    }

    /// Finds further names of files that are hidden already: what is readable
    /// under another name is not hidden.
    fn add_other_names(&mut self, project: &View) -> Result<(), FindHiddenError> {
        let identities: HashSet<(u64, u64)> = self
            .found
            .iter()
            .filter_map(|path| identity(project, path))
            .collect();
        if identities.is_empty() {
            return Ok(());
        }
        let same = |one: (u64, u64)| identities.contains(&one);
        let counted = std::mem::take(&mut self.entries);
        let mut waiting = vec![project.directory(None)?];
        while let Some(directory) = waiting.pop() {
            for (entry, path) in self.list(project, &directory)? {
                match entry.kind {
                    NodeKind::Directory if &*entry.name != b".git" => {
                        waiting.extend(project.enter(&directory, &entry)?);
                    }
                    NodeKind::File if identity(project, &path).is_some_and(same) => {
                        self.found.insert(path);
                    }
                    _ => {}
                }
            }
        }
        self.entries = counted;
        Ok(())
    }

    /// The list, if all of it can be hidden.
    fn conclude(self, root: &Path, mounts: Mounts) -> Result<Hidden, FindHiddenError> {
        let found = without_parts(&self.found);
        if let (Mounts::No, Some(path)) = (mounts, found.first()) {
            let path = (*path).clone();
            return Err(FindHiddenError::NothingHides { path });
        }
        if found.len() > MAX_HIDDEN {
            let found = found.len();
            return Err(FindHiddenError::TooManyHidden { found });
        }
        let paths = found.iter().map(|path| named(root, path));
        Ok(Hidden {
            paths: paths.collect::<Result<_, _>>()?,
            entries: self.entries,
        })
    }
}

/// Which file it is, if it has several names.
fn identity(view: &View, path: &TreePath) -> Option<(u64, u64)> {
    let (file, _) = view.open(path).ok()?;
    let metadata = file.metadata().ok()?;
    (metadata.nlink() > 1).then(|| (metadata.dev(), metadata.ino()))
}

/// Leaves out what is below something else that is hidden.
fn without_parts(found: &BTreeSet<TreePath>) -> Vec<&TreePath> {
    let below = |path: &TreePath| path.ancestors().any(|above| found.contains(&above));
    found.iter().filter(|path| !below(path)).collect()
}

fn named(root: &Path, path: &TreePath) -> Result<PathBuf, FindHiddenError> {
    match OsStr::from_bytes(path.as_bytes()).to_str() {
        Some(text) => Ok(root.join(text)),
        None => Err(FindHiddenError::Unnameable { path: path.clone() }),
    }
}

fn is_closed_or_gone(error: &ReadViewError) -> bool {
    match error {
        ReadViewError::Absent { .. } => true,
        ReadViewError::File(error) => matches!(
            error.reason().kind(),
            io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
