//! Which names a search leaves out: ignore files as the session sees them.
//!
//! `.ignore` files weigh more than `.gitignore` files, deeper ones more than
//! those above, `.git/info/exclude` least. Ignore files are hostile text like
//! any other; a line that is no glob is passed over. A person's own global
//! ignore file is not read: it would make results differ between machines.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use fluffy_layer::{Entry, NodeKind, ReadViewError, TreePath, View};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// The most bytes of an ignore file, and the most lines.
const MAX_BYTES: u64 = 1 << 20;
const MAX_LINES: usize = 10_000;

/// The ignore files of a directory and of all above it.
#[derive(Debug, Clone)]
pub(super) struct Ignores {
    exclude: Option<Arc<Gitignore>>,
    levels: Vec<Arc<Level>>,
}

#[derive(Debug)]
struct Level {
    ignore: Option<Gitignore>,
    gitignore: Option<Gitignore>,
}

/// Whether hidden names are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hidden {
    /// They are.
    Show,
    /// Only those that an ignore file takes back.
    Skip,
}

impl Ignores {
    /// What holds in a directory, or the root, before its own ignore files.
    pub(super) fn above(view: &View, path: Option<&TreePath>) -> Result<Self, ReadViewError> {
        let exclude = TreePath::parse(b".git/info/exclude").ok();
        let exclude = exclude.and_then(|file| matcher(view, None, &file));
        let mut ignores = Self {
            exclude: exclude.map(Arc::new),
            levels: Vec::new(),
        };
        let Some(path) = path else {
            return Ok(ignores);
        };
        let mut above: Vec<TreePath> = path.ancestors().collect();
        above.reverse();
        for directory in std::iter::once(None).chain(above.iter().map(Some)) {
            let entries = view.list(&view.directory(directory)?)?;
            ignores = ignores.within(view, directory, &entries);
        }
        Ok(ignores)
    }

    /// What holds in a directory with these names.
    pub(super) fn within(
        &self,
        view: &View,
        directory: Option<&TreePath>,
        entries: &[Entry],
    ) -> Self {
        let read = |name: &[u8]| {
            let is_there = |entry: &&Entry| entry.kind == NodeKind::File && *entry.name == *name;
            entries.iter().find(is_there)?;
            let path = TreePath::below(directory, name).ok()?;
            matcher(view, directory, &path)
        };
        let level = Level {
            ignore: read(b".ignore"),
            gitignore: read(b".gitignore"),
        };
        let mut inner = self.clone();
        if level.ignore.is_some() || level.gitignore.is_some() {
            inner.levels.push(Arc::new(level));
        }
        inner
    }

    /// Whether a search passes over a name.
    pub(super) fn leaves_out(&self, path: &TreePath, kind: NodeKind, hidden: Hidden) -> bool {
        if path.name() == b".git" {
            return true;
        }
        let is_directory = kind == NodeKind::Directory;
        match self.decide(as_path(path), is_directory) {
            Match::Ignore(()) => true,
            Match::Whitelist(()) => false,
            Match::None => hidden == Hidden::Skip && path.name().starts_with(b"."),
        }
    }

    fn decide(&self, path: &Path, is_directory: bool) -> Match<()> {
        let levels = || self.levels.iter().rev();
        let ignores = levels().filter_map(|level| level.ignore.as_ref());
        let gitignores = levels().filter_map(|level| level.gitignore.as_ref());
        let all = ignores.chain(gitignores).chain(self.exclude.as_deref());
        for matcher in all {
            match matcher.matched(path, is_directory) {
                Match::None => {}
                Match::Ignore(_) => return Match::Ignore(()),
                Match::Whitelist(_) => return Match::Whitelist(()),
            }
        }
        Match::None
    }
}

/// The path as the libraries take it.
pub(super) fn as_path(path: &TreePath) -> &Path {
    Path::new(OsStr::from_bytes(path.as_bytes()))
}

fn matcher(view: &View, directory: Option<&TreePath>, file: &TreePath) -> Option<Gitignore> {
    let bytes = view.read(file, MAX_BYTES).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_start_matches('\u{feff}');
    let root = directory.map_or(Path::new(""), as_path);
    let mut builder = GitignoreBuilder::new(root);
    for line in text.lines().take(MAX_LINES) {
        // What is no glob ignores nothing, as in git.
        let _ = builder.add_line(None, line);
    }
    builder.build().ok().filter(|matcher| !matcher.is_empty())
}
