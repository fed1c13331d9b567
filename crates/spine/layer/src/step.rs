//! One step of a merge: what must be there before, and what is there after.
//!
//! Both are checked against the project itself, so a step can be repeated: if
//! the project has what was before, the step is still to do; if it has what is
//! after, it was done; anything else is a conflict.

use std::io;

use fluffy_base::Digest;
use serde::{Deserialize, Serialize};

use crate::path::{TreePath, escape};
use crate::tree::{Identity, Node, NodeKind, Tree, is_absent};

/// One path and what a merge does there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Where.
    pub path: TreePath,
    /// What the project must have, or the step is not done.
    pub(crate) before: Seen,
    /// What the project has then.
    pub(crate) after: Wanted,
}

/// What the project has at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub(crate) enum Seen {
    Absent,
    File {
        digest: Digest,
        mode: u32,
    },
    /// A file that was not read, only known not to have changed.
    Unread {
        identity: Identity,
    },
    Symlink {
        target: String,
    },
    Directory {
        mode: u32,
    },
}

/// What a merge puts at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub(crate) enum Wanted {
    Absent,
    File {
        digest: Digest,
        mode: u32,
        from: Source,
    },
    Symlink {
        target: String,
    },
    Directory {
        mode: u32,
    },
}

/// Where a file's new content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Source {
    /// In the layer, at the same path.
    Layer,
    /// Among the texts that were merged from both sides.
    Merged,
    /// In the project: only the mode changes.
    Project,
}

/// What a step does, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepKind {
    /// A file or link goes.
    Remove,
    /// An empty directory goes.
    RemoveDirectory,
    /// A directory comes.
    MakeDirectory,
    /// A file comes or gets new content.
    Write,
    /// A symbolic link comes or gets a new target.
    Link,
    /// Only permissions change.
    Mode,
}

impl Step {
    /// What it does; steps are done in the order of these kinds.
    #[must_use]
    pub fn kind(&self) -> StepKind {
        match (&self.before, &self.after) {
            (Seen::Directory { .. }, Wanted::Absent) => StepKind::RemoveDirectory,
            (_, Wanted::Absent) => StepKind::Remove,
            (Seen::Directory { .. }, Wanted::Directory { .. })
            | (
                _,
                Wanted::File {
                    from: Source::Project,
                    ..
                },
            ) => StepKind::Mode,
            (_, Wanted::Directory { .. }) => StepKind::MakeDirectory,
            (_, Wanted::File { .. }) => StepKind::Write,
            (_, Wanted::Symlink { .. }) => StepKind::Link,
        }
    }

    /// The action that a policy is asked about.
    #[must_use]
    pub fn action(&self) -> &'static str {
        match self.after {
            Wanted::Absent => "fs.remove",
            _ => "fs.write",
        }
    }
}

impl Seen {
    /// Whether this is what a tree has at a path.
    pub(crate) fn is_at(&self, tree: &Tree, path: &TreePath) -> io::Result<bool> {
        let node = tree.node(path)?;
        let kind = node.map(|node| node.kind);
        match (self, node) {
            (Self::Absent, None) => Ok(true),
            (Self::Directory { mode }, Some(node)) => {
                Ok(kind == Some(NodeKind::Directory) && node.permissions() == *mode)
            }
            (Self::Unread { identity }, Some(node)) => Ok(node.identity == *identity),
            (Self::File { digest, mode }, Some(node)) if kind == Some(NodeKind::File) => {
                Ok(node.permissions() == *mode && holds(tree, path, digest)?)
            }
            (Self::Symlink { target }, Some(_)) if kind == Some(NodeKind::Symlink) => {
                Ok(*target == escape(&tree.link_target(path)?))
            }
            _ => Ok(false),
        }
    }
}

impl Wanted {
    /// Whether this is what a tree has at a path.
    pub(crate) fn is_at(&self, tree: &Tree, path: &TreePath) -> io::Result<bool> {
        match self {
            Self::Absent => Seen::Absent.is_at(tree, path),
            Self::File { digest, mode, .. } => {
                let (digest, mode) = (*digest, *mode);
                Seen::File { digest, mode }.is_at(tree, path)
            }
            Self::Symlink { target } => {
                let target = target.clone();
                Seen::Symlink { target }.is_at(tree, path)
            }
            Self::Directory { mode } => Seen::Directory { mode: *mode }.is_at(tree, path),
        }
    }
}

/// What was swapped out of the project: still what was expected there?
///
/// A rename changes the time of change, so an unread file is known by the rest.
pub(crate) fn is_same_after_rename(identity: &Identity, node: &Node) -> bool {
    identity.inode == node.identity.inode
        && identity.device == node.identity.device
        && identity.size == node.identity.size
}

fn holds(tree: &Tree, path: &TreePath, digest: &Digest) -> io::Result<bool> {
    match tree.digest(path) {
        Ok((found, _)) => Ok(found == *digest),
        // Swapped for something else since it was looked at.
        Err(error) if is_absent(&error) || error.kind() == io::ErrorKind::InvalidInput => Ok(false),
        Err(error) => Err(error),
    }
}
