//! Whole directories as a session sees them, for walking and searching.
//!
//! One look at each side per directory and no question about single names
//! where the directory itself answers, so that ten thousand files are walked in
//! milliseconds. Never follows a link and never leaves the two roots.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, FileType};

use crate::error::Explain;
use crate::path::TreePath;
use crate::record::LayerKind;
use crate::scan::is_other_mount;
use crate::tree::{MAX_NAMES, Node, NodeKind, Tree, is_absent};
use crate::view::{ReadViewError, Side, View, is_opaque, is_whiteout};

/// A directory that a session sees, and which sides it is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenDirectory {
    path: Option<TreePath>,
    in_layer: bool,
    in_project: bool,
}

/// One name in a directory, as a session sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name, as bytes.
    pub name: Box<[u8]>,
    /// What kind of thing it is.
    pub kind: NodeKind,
    /// Where it really is; a directory may be in the project as well.
    pub side: Side,
}

impl SeenDirectory {
    /// Where it is; nothing for the root.
    #[must_use]
    pub fn path(&self) -> Option<&TreePath> {
        self.path.as_ref()
    }
}

impl View {
    /// The directory at a path, or the root.
    ///
    /// # Errors
    /// Nothing is there, or something else.
    pub fn directory(&self, path: Option<&TreePath>) -> Result<SeenDirectory, ReadViewError> {
        let mut directory = SeenDirectory {
            path: None,
            in_layer: self.layer.is_some(),
            in_project: !matches!(self.layer, Some((LayerKind::Copy, _))),
        };
        let Some(path) = path else {
            return Ok(directory);
        };
        let absent = || ReadViewError::Absent { path: path.clone() };
        for name in path.names() {
            let below = TreePath::below(directory.path(), name).map_err(|_| absent())?;
            let seen = self.look(&below)?.ok_or_else(absent)?;
            if seen.kind != NodeKind::Directory {
                return Err(match below == *path {
                    true => ReadViewError::Kind {
                        path: path.clone(),
                        kind: seen.kind,
                    },
                    false => absent(),
                });
            }
            directory = self.step(&directory, below, seen.side)?;
        }
        Ok(directory)
    }

    /// A directory that was listed; nothing if its path is too long to name.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn enter(
        &self,
        directory: &SeenDirectory,
        entry: &Entry,
    ) -> Result<Option<SeenDirectory>, ReadViewError> {
        match TreePath::below(directory.path(), &entry.name) {
            Ok(path) => self.step(directory, path, entry.side).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// The names in a directory with what they are, sorted by name.
    ///
    /// # Errors
    /// A side cannot be read. What vanished meanwhile is just not there.
    pub fn list(&self, directory: &SeenDirectory) -> Result<Vec<Entry>, ReadViewError> {
        let path = directory.path();
        let mut entries = Vec::new();
        let mut decided: HashSet<Box<[u8]>> = HashSet::new();
        if let (true, Some((kind, content))) = (directory.in_layer, &self.layer) {
            for (name, node) in layer_names(content, path).at("read", &content.shown(path))? {
                if let Some(kind) = node {
                    entries.push(Entry {
                        name: name.clone(),
                        kind,
                        side: Side::Layer,
                    });
                }
                if *kind == LayerKind::Overlay {
                    decided.insert(name);
                }
            }
        }
        if directory.in_project {
            let names = names_of(&self.project, path);
            for (name, kind) in names.at("read", &self.project.shown(path))? {
                if !decided.contains(&name) {
                    entries.push(Entry {
                        name,
                        kind,
                        side: Side::Project,
                    });
                }
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Opens a regular file that was listed, without looking for it again.
    ///
    /// # Errors
    /// It is gone, or something else by now.
    pub fn open_listed(&self, path: &TreePath, side: Side) -> Result<File, ReadViewError> {
        let tree = self.tree(side);
        match tree.file(path) {
            Ok((file, _)) => Ok(file),
            Err(error) if is_absent(&error) || is_other_mount(&error) => {
                Err(ReadViewError::Absent { path: path.clone() })
            }
            Err(error) => Err(error).within("read", tree, path)?,
        }
    }

    fn step(
        &self,
        above: &SeenDirectory,
        path: TreePath,
        side: Side,
    ) -> Result<SeenDirectory, ReadViewError> {
        let opaque = match (&self.layer, side) {
            (Some((LayerKind::Overlay, content)), Side::Layer) => {
                is_opaque(content, &path).within("read", content, &path)?
            }
            _ => false,
        };
        Ok(SeenDirectory {
            in_layer: side == Side::Layer,
            in_project: above.in_project && !opaque,
            path: Some(path),
        })
    }
}

/// Names with their kinds; nothing as kind means "deleted".
type LayerNames = Vec<(Box<[u8]>, Option<NodeKind>)>;

/// The names of a layer's directory.
fn layer_names(content: &Tree, path: Option<&TreePath>) -> io::Result<LayerNames> {
    let Some(directory) = open(content, path)? else {
        return Ok(Vec::new());
    };
    let mut names = Vec::new();
    for (name, kind) in kinds_in(&directory)? {
        // Only these two can stand for a deletion.
        if !matches!(kind, NodeKind::Device | NodeKind::File) {
            names.push((name, Some(kind)));
            continue;
        }
        let Some(node) = Node::at(&directory, &name)? else {
            continue;
        };
        let deleted = match TreePath::below(path, &name) {
            Ok(below) => is_whiteout(content, &below, &node),
            Err(_) => Ok(node.is_whiteout),
        };
        match deleted {
            Ok(deleted) => names.push((name, (!deleted).then_some(node.kind))),
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(names)
}

fn names_of(tree: &Tree, path: Option<&TreePath>) -> io::Result<Vec<(Box<[u8]>, NodeKind)>> {
    match open(tree, path)? {
        Some(directory) => kinds_in(&directory),
        None => Ok(Vec::new()),
    }
}

/// A directory of one side; nothing if that side has none there.
fn open(tree: &Tree, path: Option<&TreePath>) -> io::Result<Option<OwnedFd>> {
    match tree.directory(path) {
        Ok(directory) => Ok(Some(directory)),
        Err(error) if is_absent(&error) || is_other_mount(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The names in a directory with their kinds, as the directory itself says.
fn kinds_in(directory: &OwnedFd) -> io::Result<Vec<(Box<[u8]>, NodeKind)>> {
    let mut names: Vec<(Box<[u8]>, NodeKind)> = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        if names.len() >= MAX_NAMES {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "too many names in one directory",
            ));
        }
        let kind = match entry.file_type() {
            FileType::RegularFile => NodeKind::File,
            FileType::Directory => NodeKind::Directory,
            FileType::Symlink => NodeKind::Symlink,
            FileType::Fifo => NodeKind::Fifo,
            FileType::Socket => NodeKind::Socket,
            FileType::CharacterDevice | FileType::BlockDevice => NodeKind::Device,
            // Not every file system says it in the directory.
            _ => match Node::at(directory, name)? {
                Some(node) => node.kind,
                None => continue,
            },
        };
        names.push((name.into(), kind));
    }
    Ok(names)
}
