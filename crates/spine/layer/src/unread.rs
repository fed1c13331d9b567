//! What of a tree may not be read, found once and to its end.
//!
//! Every file is asked about, ignored ones too, and every other name of a file
//! that may not be read counts with it. Git's own data is left out: what was
//! committed is in it anyway. Decides nothing itself, and never gives half a
//! list.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt as _;

use crate::listing::{Entry, SeenDirectory};
use crate::path::TreePath;
use crate::tree::NodeKind;
use crate::view::{ReadViewError, View};

/// The most files and directories that are looked at.
pub const MAX_LOOKED_AT: usize = 1_000_000;

/// What may not be read.
#[derive(Debug, Clone)]
pub struct Unread {
    found: BTreeSet<TreePath>,
    entries: usize,
}

impl Unread {
    /// The paths, in order; what is below another one is left out.
    pub fn paths(&self) -> impl Iterator<Item = &TreePath> {
        let below = |path: &TreePath| path.ancestors().any(|above| self.found.contains(&above));
        self.found.iter().filter(move |path| !below(path))
    }

    /// How many files and directories were asked about.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.entries
    }
}

/// Why nobody can say what may not be read.
#[derive(Debug, thiserror::Error)]
pub enum FindUnreadError {
    /// There is too much of it.
    #[error("the project has more than {limit} files, so not all can be asked about")]
    TooManyEntries {
        /// How many may be looked at.
        limit: usize,
    },
    /// A part of it cannot be looked at.
    #[error("the project cannot be looked at as a whole")]
    Read(#[from] ReadViewError),
}

/// Asks about everything in a project, and in a copy of it where there is one.
///
/// # Errors
/// Not all could be asked about.
pub fn find_unread(
    project: &View,
    copy: Option<&View>,
    limit: usize,
    may_read: &dyn Fn(&str) -> bool,
) -> Result<Unread, FindUnreadError> {
    let mut search = Search::new(may_read, limit);
    search.walk(project)?;
    // A copy holds what the project had when it was made.
    if let Some(copy) = copy {
        search.walk(copy)?;
    }
    search.add_other_names(project)?;
    Ok(Unread {
        found: search.found,
        entries: search.entries,
    })
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
    fn walk(&mut self, view: &View) -> Result<(), FindUnreadError> {
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
    ) -> Result<Vec<(Entry, TreePath)>, FindUnreadError> {
        let entries = match view.list(directory) {
            Ok(entries) => entries,
            // Commands run as the same user, with less power.
            Err(error) if is_closed_or_gone(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        self.entries = self.entries.saturating_add(entries.len());
        if self.entries > self.limit {
            let limit = self.limit;
            return Err(FindUnreadError::TooManyEntries { limit });
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
    fn add_other_names(&mut self, project: &View) -> Result<(), FindUnreadError> {
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
}

/// Which file it is, if it has several names.
fn identity(view: &View, path: &TreePath) -> Option<(u64, u64)> {
    let (file, _) = view.open(path).ok()?;
    let metadata = file.metadata().ok()?;
    (metadata.nlink() > 1).then(|| (metadata.dev(), metadata.ino()))
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
