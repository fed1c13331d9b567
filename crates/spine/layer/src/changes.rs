//! What a layer changes, path by path.
//!
//! Compared with what the project had when the layer touched it, so that what
//! a person changes in the project meanwhile is never shown as the layer's
//! doing. A rename is a deletion and an addition.

use fluffy_base::Digest;
use serde::Serialize;

use crate::base::Base;
use crate::error::{Explain, FileError};
use crate::layer::{HeldLayer, ReadLayerError};
use crate::path::{TreePath, escape};
use crate::refusal::Refusal;
use crate::scan::{Touched, is_other_mount};
use crate::settle::Settled;
use crate::tree::{Node, NodeKind, is_absent};

/// One changed path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Where.
    pub path: TreePath,
    /// What happened.
    pub kind: ChangeKind,
    /// What was there.
    pub before: Option<Shape>,
    /// What is there in the layer.
    pub after: Option<Shape>,
}

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// Its content is another.
    Modified,
    /// It is gone.
    Deleted,
    /// Only its permissions are others.
    Mode,
    /// It is another kind of thing.
    Retyped,
    /// The link points elsewhere.
    Relinked,
}

/// What kind of thing is at a path, and how large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// The kind.
    pub kind: NodeKind,
    /// Permissions, with setuid, setgid and sticky.
    pub mode: u32,
    /// Bytes of content.
    pub size: u64,
}

/// All changes of a layer, sorted by path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Changes {
    /// What changed.
    pub list: Vec<Change>,
    /// What could not be read; such a layer is not merged as a whole.
    pub problems: Vec<Refusal>,
}

impl HeldLayer {
    /// What the layer changes.
    ///
    /// # Errors
    /// The layer or the project cannot be read, or is larger than the limits.
    pub fn changes(&self) -> Result<Changes, ReadLayerError> {
        self.check_open()?;
        let settled = self.settled()?;
        Ok(changes_of(&settled)?)
    }
}

/// The changes of a layer that was just looked through.
pub(crate) fn changes_of(settled: &Settled) -> Result<Changes, FileError> {
    let mut list = Vec::new();
    for touched in &settled.scan.touched {
        list.extend(compare(settled, touched)?);
    }
    Ok(Changes {
        list,
        problems: settled.scan.problems.clone(),
    })
}

/// What was at a path before the layer touched it, as far as can be known.
pub(crate) fn base_or_project(settled: &Settled, path: &TreePath) -> Result<Base, FileError> {
    match settled.index.entries.get(path) {
        None | Some(Base::Unknown) => project_now(settled, path),
        Some(base) => Ok(base.clone()),
    }
}

/// What the project has now; the digest of a file is left out.
pub(crate) fn project_now(settled: &Settled, path: &TreePath) -> Result<Base, FileError> {
    let node = match settled.project.node(path) {
        Ok(Some(node)) => node,
        Ok(None) => return Ok(Base::Absent),
        Err(error) if is_other_mount(&error) => return Ok(Base::Unknown),
        Err(error) => return Err(error).within("read", &settled.project, path),
    };
    Ok(match node.kind {
        NodeKind::File => Base::File {
            mode: node.mode,
            identity: node.identity,
            digest: None,
        },
        NodeKind::Directory => Base::Directory { mode: node.mode },
        NodeKind::Symlink => {
            let target = settled.project.link_target(path);
            let target = target.within("read", &settled.project, path)?;
            Base::Symlink {
                target: escape(&target),
            }
        }
        kind => Base::Special { kind },
    })
}

fn compare(settled: &Settled, touched: &Touched) -> Result<Option<Change>, FileError> {
    let path = &touched.path;
    let base = base_or_project(settled, path)?;
    let before = shape_of(&base);
    let after = touched.node.map(|node| Shape {
        kind: node.kind,
        mode: node.mode,
        size: node.identity.size,
    });
    let kind = match (before, touched.node) {
        (None, None) => None,
        (None, Some(_)) => Some(ChangeKind::Added),
        (Some(_), None) => Some(ChangeKind::Deleted),
        (Some(old), Some(new)) if old.kind != new.kind => Some(ChangeKind::Retyped),
        (Some(old), Some(new)) => {
            if is_content_equal(settled, path, &base, &new)? {
                mode_differs(old.mode, new.mode).then_some(ChangeKind::Mode)
            } else if new.kind == NodeKind::Symlink {
                Some(ChangeKind::Relinked)
            } else {
                Some(ChangeKind::Modified)
            }
        }
    };
    Ok(kind.map(|kind| Change {
        path: path.clone(),
        kind,
        before,
        after,
    }))
}

/// Whether permissions differ, or a special bit is new.
pub(crate) const fn mode_differs(old: u32, new: u32) -> bool {
    old & 0o777 != new & 0o777 || new & !old & 0o7000 != 0
}

fn is_content_equal(
    settled: &Settled,
    path: &TreePath,
    base: &Base,
    node: &Node,
) -> Result<bool, FileError> {
    let content = &settled.content;
    match base {
        Base::File {
            identity, digest, ..
        } => {
            if identity.size != node.identity.size {
                return Ok(false);
            }
            let old = match digest {
                Some(digest) => Some(*digest),
                None => project_digest(settled, path)?,
            };
            let (new, _) = match content.digest(path) {
                Ok(new) => new,
                // Unreadable: it differs as far as anyone can say.
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    return Ok(false);
                }
                Err(error) => return Err(error).within("read", content, path),
            };
            Ok(old == Some(new))
        }
        Base::Symlink { target } => {
            let new = content.link_target(path).within("read", content, path)?;
            Ok(*target == escape(&new))
        }
        Base::Directory { .. } | Base::Special { .. } => Ok(true),
        Base::Unknown | Base::Absent => Ok(false),
    }
}

fn project_digest(settled: &Settled, path: &TreePath) -> Result<Option<Digest>, FileError> {
    match settled.project.digest(path) {
        Ok((digest, _)) => Ok(Some(digest)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error).within("read", &settled.project, path),
    }
}

fn shape_of(base: &Base) -> Option<Shape> {
    let shape = |kind, mode, size| Some(Shape { kind, mode, size });
    match base {
        Base::Unknown | Base::Absent => None,
        Base::File { mode, identity, .. } => shape(NodeKind::File, *mode, identity.size),
        Base::Directory { mode } => shape(NodeKind::Directory, *mode, 0),
        Base::Symlink { target } => shape(
            NodeKind::Symlink,
            0o777,
            u64::try_from(target.len()).unwrap_or(0),
        ),
        Base::Special { kind } => shape(*kind, 0, 0),
    }
}
