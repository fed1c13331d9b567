//! The project as a session with the layer sees it.
//!
//! The one place that knows how an overlay is looked through from outside.
//! Reads only; never follows a link, never opens what is no regular file or
//! directory. [`View`] is for readers of other crates, [`Sides`] for this one;
//! going through whole directories is in [`crate::listing`].

use std::fs::File;
use std::io;
use std::path::Path;

use crate::error::{Explain, FileError};
use crate::layer::{HeldLayer, ReadLayerError};
use crate::path::TreePath;
use crate::record::LayerKind;
use crate::tree::{Node, NodeKind, Tree, is_absent, read_at_most};

/// What a session sees, for reading: its layer over the project.
///
/// Opened for one call and then let go: a layer that is restored or merged is
/// another directory afterwards.
#[derive(Debug)]
pub struct View {
    pub(crate) layer: Option<(LayerKind, Tree)>,
    pub(crate) project: Tree,
}

/// What is at a path, as a session sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// What kind of thing it is.
    pub kind: NodeKind,
    /// Bytes of content.
    pub size: u64,
    /// Permissions, with setuid, setgid and sticky.
    pub mode: u32,
    /// Where it really is.
    pub side: Side,
}

/// Where something that the session sees really is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// In the layer.
    Layer,
    /// In the project, untouched.
    Project,
}

/// Why something that a session might see was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadViewError {
    /// Nothing is there, or a link or a file is on the way to it.
    #[error("there is no `{path}`")]
    Absent {
        /// Where.
        path: TreePath,
    },
    /// It is another kind of thing than what was asked for.
    #[error("`{path}` is a {}", kind.describe())]
    Kind {
        /// Where.
        path: TreePath,
        /// What it is.
        kind: NodeKind,
    },
    /// It is larger than what is read.
    #[error("`{path}` has {size} bytes, and at most {limit} are read")]
    TooLarge {
        /// Where.
        path: TreePath,
        /// How large it is.
        size: u64,
        /// How large it may be.
        limit: u64,
    },
    /// The operating system refused.
    #[error(transparent)]
    File(#[from] FileError),
}

impl View {
    /// What a session without a layer sees: the project.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub fn of_project(project: &Path) -> Result<Self, FileError> {
        Ok(Self {
            layer: None,
            project: Tree::open(project).at("open", project)?,
        })
    }

    /// What is at a path; nothing if nothing is, or a link is on the way.
    ///
    /// # Errors
    /// The operating system refuses to say.
    pub fn look(&self, path: &TreePath) -> Result<Option<Seen>, FileError> {
        let found = match &self.layer {
            Some((kind, content)) => Sides {
                kind: *kind,
                content,
                project: &self.project,
            }
            .find(path),
            None => (self.project.node(path)).map(|node| node.map(|node| (Side::Project, node))),
        };
        let found = match found {
            // Another disk is mounted there: no sandbox sees it either.
            Err(error) if crate::scan::is_other_mount(&error) => None,
            other => other.within("read", &self.project, path)?,
        };
        Ok(found.map(|(side, node)| Seen {
            kind: node.kind,
            size: node.identity.size,
            mode: node.mode,
            side,
        }))
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// Nothing is there, or something that is no regular file.
    pub fn open(&self, path: &TreePath) -> Result<(File, Seen), ReadViewError> {
        let absent = || ReadViewError::Absent { path: path.clone() };
        // Asked before it is opened, because opening a device can do something.
        let seen = self.look(path)?.ok_or_else(absent)?;
        if seen.kind != NodeKind::File {
            return Err(ReadViewError::Kind {
                path: path.clone(),
                kind: seen.kind,
            });
        }
        match self.tree(seen.side).file(path) {
            Ok((file, node)) => Ok((
                file,
                Seen {
                    size: node.identity.size,
                    mode: node.mode,
                    ..seen
                },
            )),
            Err(error) if is_absent(&error) => Err(absent()),
            Err(error) => Err(error).within("read", self.tree(seen.side), path)?,
        }
    }

    /// The content of a regular file of at most `limit` bytes.
    ///
    /// # Errors
    /// As [`View::open`], or it is larger.
    pub fn read(&self, path: &TreePath, limit: u64) -> Result<Vec<u8>, ReadViewError> {
        let (file, seen) = self.open(path)?;
        match read_at_most(file, seen.size, limit) {
            Ok(bytes) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                Err(ReadViewError::TooLarge {
                    path: path.clone(),
                    size: seen.size,
                    limit,
                })
            }
            Err(error) => Err(error).within("read", self.tree(seen.side), path)?,
        }
    }

    /// Where a symbolic link points, as bytes that nobody has followed.
    ///
    /// # Errors
    /// Nothing is there, or something that is no link.
    pub fn link_target(&self, path: &TreePath) -> Result<Vec<u8>, ReadViewError> {
        let absent = || ReadViewError::Absent { path: path.clone() };
        let seen = self.look(path)?.ok_or_else(absent)?;
        if seen.kind != NodeKind::Symlink {
            return Err(ReadViewError::Kind {
                path: path.clone(),
                kind: seen.kind,
            });
        }
        let tree = self.tree(seen.side);
        Ok(tree.link_target(path).within("read", tree, path)?)
    }

    pub(crate) fn tree(&self, side: Side) -> &Tree {
        match (&self.layer, side) {
            (Some((_, content)), Side::Layer) => content,
            (_, Side::Project) | (None, Side::Layer) => &self.project,
        }
    }
}

/// Both sides of a layer, read as one tree.
#[derive(Debug)]
pub(crate) struct Sides<'a> {
    kind: LayerKind,
    content: &'a Tree,
    project: &'a Tree,
}

impl<'a> Sides<'a> {
    pub(crate) fn new(held: &HeldLayer, content: &'a Tree, project: &'a Tree) -> Self {
        Self {
            kind: held.layer().kind(),
            content,
            project,
        }
    }

    /// What the sandbox sees at a path, and where it is.
    pub(crate) fn find(&self, path: &TreePath) -> io::Result<Option<(Side, Node)>> {
        if self.kind == LayerKind::Copy {
            let node = self.content.node(path)?;
            return Ok(node.map(|node| (Side::Layer, node)));
        }
        let mut above: Vec<TreePath> = path.ancestors().collect();
        above.reverse();
        let mut hidden = false;
        for directory in above {
            match self.content.node(&directory)? {
                Some(node) if node.kind == NodeKind::Directory => {
                    hidden = hidden || is_opaque(self.content, &directory)?;
                }
                Some(_) => return Ok(None),
                None => return self.below(path, hidden),
            }
        }
        match self.content.node(path)? {
            Some(node) if is_whiteout(self.content, path, &node)? => Ok(None),
            Some(node) => Ok(Some((Side::Layer, node))),
            None => self.below(path, hidden),
        }
    }

    /// The content of a regular file that the sandbox sees.
    pub(crate) fn read(&self, path: &TreePath, limit: u64) -> io::Result<Option<Vec<u8>>> {
        match self.find(path)? {
            Some((Side::Layer, _)) => self.content.read(path, limit).map(Some),
            Some((Side::Project, _)) => self.project.read(path, limit).map(Some),
            None => Ok(None),
        }
    }

    /// Where a symbolic link that the sandbox sees points; nothing if it is none.
    pub(crate) fn link(&self, path: &TreePath) -> io::Result<Option<Vec<u8>>> {
        match self.find(path)? {
            Some((side, node)) if node.kind == NodeKind::Symlink => {
                let tree = match side {
                    Side::Layer => self.content,
                    Side::Project => self.project,
                };
                tree.link_target(path).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn below(&self, path: &TreePath, hidden: bool) -> io::Result<Option<(Side, Node)>> {
        if hidden {
            return Ok(None);
        }
        let node = self.project.node(path)?;
        Ok(node.map(|node| (Side::Project, node)))
    }
}

/// Whether a directory in a layer hides the project's.
pub(crate) fn is_opaque(content: &Tree, directory: &TreePath) -> io::Result<bool> {
    let value = content.attribute(directory, crate::scan::OPAQUE)?;
    Ok(value.as_deref() == Some(b"y"))
}

/// Whether an entry in a layer stands for a deletion.
pub(crate) fn is_whiteout(content: &Tree, path: &TreePath, node: &Node) -> io::Result<bool> {
    if node.is_whiteout {
        return Ok(true);
    }
    if node.kind != NodeKind::File || node.identity.size > 0 {
        return Ok(false);
    }
    match content.attribute(path, crate::scan::WHITEOUT) {
        Ok(value) => Ok(value.is_some()),
        // The kernel's own marks can always be read; this is somebody's file.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
        Err(error) => Err(error),
    }
}

impl HeldLayer {
    /// What a session with this layer sees, for reading.
    ///
    /// A sandbox may be writing to it meanwhile.
    ///
    /// # Errors
    /// A merge is unfinished, or one of the directories cannot be opened.
    pub fn view(&self) -> Result<View, ReadLayerError> {
        self.check_open()?;
        Ok(View {
            layer: Some((self.layer().kind(), self.content()?)),
            project: self.project()?,
        })
    }

    /// What a sandbox would read at a path, up to `limit` bytes.
    ///
    /// # Errors
    /// It is no regular file, is larger, or cannot be read.
    pub fn read(&self, path: &TreePath, limit: u64) -> Result<Option<Vec<u8>>, ReadLayerError> {
        let (content, project) = (self.content()?, self.project()?);
        let sides = Sides::new(self, &content, &project);
        Ok(sides.read(path, limit).within("read", &project, path)?)
    }
}
