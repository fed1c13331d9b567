//! The project as a sandbox with the layer sees it.
//!
//! The one place that knows how an overlay is looked through from outside.
//! Reads only; never follows a link.

use std::io;

use crate::layer::{HeldLayer, ReadLayerError};
use crate::path::TreePath;
use crate::record::LayerKind;
use crate::tree::{Node, NodeKind, Tree};

/// Both sides of a layer, read as one tree.
#[derive(Debug)]
pub(crate) struct View<'a> {
    kind: LayerKind,
    content: &'a Tree,
    project: &'a Tree,
}

/// Where something that the sandbox sees really is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// In the layer.
    Layer,
    /// In the project, untouched.
    Project,
}

impl<'a> View<'a> {
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
                    hidden = hidden || self.is_opaque(&directory)?;
                }
                Some(_) => return Ok(None),
                None => return self.below(path, hidden),
            }
        }
        match self.content.node(path)? {
            Some(node) if self.is_whiteout(path, &node)? => Ok(None),
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

    /// Whether a directory in the layer hides the project's.
    pub(crate) fn is_opaque(&self, directory: &TreePath) -> io::Result<bool> {
        let value = self.content.attribute(directory, crate::scan::OPAQUE)?;
        Ok(value.as_deref() == Some(b"y"))
    }

    /// Whether an entry in the layer stands for a deletion.
    pub(crate) fn is_whiteout(&self, path: &TreePath, node: &Node) -> io::Result<bool> {
        if node.is_whiteout {
            return Ok(true);
        }
        if node.kind != NodeKind::File || node.identity.size > 0 {
            return Ok(false);
        }
        Ok(self
            .content
            .attribute(path, crate::scan::WHITEOUT)?
            .is_some())
    }

    fn below(&self, path: &TreePath, hidden: bool) -> io::Result<Option<(Side, Node)>> {
        if hidden {
            return Ok(None);
        }
        let node = self.project.node(path)?;
        Ok(node.map(|node| (Side::Project, node)))
    }
}

impl HeldLayer {
    /// What a sandbox would read at a path, up to `limit` bytes.
    ///
    /// # Errors
    /// It is no regular file, is larger, or cannot be read.
    pub fn read(&self, path: &TreePath, limit: u64) -> Result<Option<Vec<u8>>, ReadLayerError> {
        use crate::error::Explain;

        let (content, project) = (self.content()?, self.project()?);
        let view = View::new(self, &content, &project);
        Ok(view.read(path, limit).within("read", &project, path)?)
    }
}
