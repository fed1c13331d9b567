//! Which paths a layer has something to say about.
//!
//! For an overlay these are the names in its upper directory and all that they
//! hide; for a copy, what is no longer as it was copied. What cannot be read is
//! collected as a problem beside the rest, so that one hostile directory does
//! not hide the other changes.

use std::collections::BTreeSet;

use rustix::io::Errno;

use crate::error::Explain;
use crate::layer::{HeldLayer, ReadLayerError};
use crate::manifest::Manifest;
use crate::path::TreePath;
use crate::record::LayerKind;
use crate::refusal::{Reason, Refusal};
use crate::tree::{Children, Node, NodeKind, Tree, children_of, is_absent};

/// How an overlay marks a directory that hides what is below it.
pub(crate) const OPAQUE: &str = "user.overlay.opaque";

/// How an overlay can mark a deletion without a device.
pub(crate) const WHITEOUT: &str = "user.overlay.whiteout";

/// What would let an overlay show content from elsewhere; never switched on.
const REDIRECT: &str = "user.overlay.redirect";

/// One path and what the layer has there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Touched {
    pub(crate) path: TreePath,
    /// Nothing means that the layer removed it.
    pub(crate) node: Option<Node>,
}

/// All that a layer has to say.
#[derive(Debug)]
pub(crate) struct Scan {
    /// Sorted by path, each path once.
    pub(crate) touched: Vec<Touched>,
    /// What could not be read, as refusals.
    pub(crate) problems: Vec<Refusal>,
}

impl Scan {
    /// Whether the layer itself is as it was; the project may have changed.
    ///
    /// Every write and every rename changes an inode's time of change, which no
    /// program can set back.
    pub(crate) fn is_same_layer(&self, later: &Self) -> bool {
        let present = |scan: &Self| -> Vec<Touched> {
            let touched = scan.touched.iter().filter(|touched| touched.node.is_some());
            touched.cloned().collect()
        };
        present(self) == present(later) && self.problems == later.problems
    }
}

struct Scanner<'a> {
    held: &'a HeldLayer,
    project: &'a Tree,
    content: Tree,
    device: u64,
    scan: Scan,
}

/// Looks through a layer.
pub(crate) fn scan(held: &HeldLayer, project: &Tree) -> Result<Scan, ReadLayerError> {
    let content = held.content()?;
    let device = crate::layer::place_of(project)
        .at("read", &project.shown(None))?
        .device;
    let mut scanner = Scanner {
        held,
        project,
        content,
        device,
        scan: Scan {
            touched: Vec::new(),
            problems: Vec::new(),
        },
    };
    match held.layer().kind() {
        LayerKind::Overlay => scanner.overlay()?,
        LayerKind::Copy => scanner.copy(&Manifest::load(&held.layer().state_folder())?)?,
    }
    let mut scan = scanner.scan;
    scan.touched.sort_by(|a, b| a.path.cmp(&b.path));
    scan.problems.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(scan)
}

impl Scanner<'_> {
    fn overlay(&mut self) -> Result<(), ReadLayerError> {
        // A directory with whether one above it already hides the project's.
        let mut open = vec![(None, false)];
        while let Some((directory, hidden)) = open.pop() {
            let Some(children) = self.children(directory.as_ref())? else {
                continue;
            };
            let names: BTreeSet<Box<[u8]>> =
                children.iter().map(|(name, _)| name.clone()).collect();
            let hides = hidden || self.is_opaque(directory.as_ref())?;
            if hides {
                self.hide_below(directory.as_ref(), &names)?;
            }
            for (name, node) in children {
                let Some(path) = self.path(directory.as_ref(), &name) else {
                    continue;
                };
                if node.kind == NodeKind::Directory {
                    self.touch(path.clone(), Some(node))?;
                    open.push((Some(path), hides));
                } else {
                    self.overlay_entry(path, node)?;
                }
            }
        }
        Ok(())
    }

    fn overlay_entry(&mut self, path: TreePath, node: Node) -> Result<(), ReadLayerError> {
        let below = self.project_node(&path)?;
        if below.is_some_and(|node| node.kind == NodeKind::Directory) {
            self.hide_below(Some(&path), &BTreeSet::new())?;
        }
        let is_whiteout = node.is_whiteout || self.is_attribute_whiteout(&path, &node)?;
        self.touch(path, (!is_whiteout).then_some(node))
    }

    fn copy(&mut self, manifest: &Manifest) -> Result<(), ReadLayerError> {
        let mut present = BTreeSet::new();
        let mut open = vec![None];
        while let Some(directory) = open.pop() {
            for (name, node) in self.children(directory.as_ref())?.unwrap_or_default() {
                let Some(path) = self.path(directory.as_ref(), &name) else {
                    continue;
                };
                if node.kind == NodeKind::Directory {
                    open.push(Some(path.clone()));
                }
                if !manifest.is_untouched(&path, &node) {
                    self.touch(path.clone(), Some(node))?;
                }
                present.insert(path);
            }
        }
        for path in manifest.paths() {
            // What an unreadable directory still holds is not gone.
            let unreadable = |problem: &Refusal| path.is_within(&problem.path);
            if !present.contains(path) && !self.scan.problems.iter().any(unreadable) {
                self.touch(path.clone(), None)?;
            }
        }
        Ok(())
    }

    /// Everything the project has below a directory, except these names in it.
    fn hide_below(
        &mut self,
        directory: Option<&TreePath>,
        except: &BTreeSet<Box<[u8]>>,
    ) -> Result<(), ReadLayerError> {
        let mut open = vec![directory.cloned()];
        let mut is_top = true;
        while let Some(directory) = open.pop() {
            for (name, node) in self.project_children(directory.as_ref())? {
                if is_top && except.contains(&name) {
                    continue;
                }
                let Some(path) = self.path(directory.as_ref(), &name) else {
                    continue;
                };
                if node.kind == NodeKind::Directory && node.identity.device == self.device {
                    open.push(Some(path.clone()));
                }
                self.touch(path, None)?;
            }
            is_top = false;
        }
        Ok(())
    }

    fn touch(&mut self, path: TreePath, node: Option<Node>) -> Result<(), ReadLayerError> {
        let limit = self.held.layer().limits.entries;
        if self.scan.touched.len() >= limit {
            let layer = self.held.layer().id();
            return Err(ReadLayerError::TooManyEntries { layer, limit });
        }
        self.scan.touched.push(Touched { path, node });
        Ok(())
    }

    /// The path of a name, or a problem with the directory it is in.
    fn path(&mut self, directory: Option<&TreePath>, name: &[u8]) -> Option<TreePath> {
        let path = TreePath::below(directory, name);
        if let (Err(_), Some(directory)) = (&path, directory) {
            self.problem(directory, Reason::TooLong);
        }
        path.ok()
    }

    /// The names in a directory of the layer; nothing if it is a problem.
    fn children(
        &mut self,
        directory: Option<&TreePath>,
    ) -> Result<Option<Children>, ReadLayerError> {
        let read = self.content.directory(directory).and_then(|opened| {
            let children = children_of(&opened)?;
            let redirect = crate::tree::attribute_of(&opened, REDIRECT)?;
            Ok((children, redirect.is_some()))
        });
        match (read, directory) {
            (Ok((children, false)), _) => Ok(Some(children)),
            (Ok((_, true)), Some(path)) => {
                self.problem(path, Reason::Unreadable);
                Ok(None)
            }
            (Err(error), Some(path)) if is_of_its_making(&error) => {
                self.problem(path, Reason::Unreadable);
                Ok(None)
            }
            (Err(error), _) => Err(error).at("read", &self.content.shown(directory))?,
            (Ok((_, true)), None) => Err(ReadLayerError::Damaged {
                path: self.content.shown(None),
            }),
        }
    }

    fn problem(&mut self, path: &TreePath, reason: Reason) {
        let refusal = Refusal::new(path.clone(), reason);
        if !self.scan.problems.contains(&refusal) {
            self.scan.problems.push(refusal);
        }
    }

    fn is_opaque(&self, directory: Option<&TreePath>) -> Result<bool, ReadLayerError> {
        let Some(path) = directory else {
            return Ok(false);
        };
        let value = self
            .content
            .attribute(path, OPAQUE)
            .within("read", &self.content, path)?;
        Ok(value.as_deref() == Some(b"y"))
    }

    fn is_attribute_whiteout(&self, path: &TreePath, node: &Node) -> Result<bool, ReadLayerError> {
        if node.kind != NodeKind::File || node.identity.size > 0 {
            return Ok(false);
        }
        let value = match self.content.attribute(path, WHITEOUT) {
            Ok(value) => value,
            Err(error) if is_of_its_making(&error) => None,
            Err(error) => return Err(error).within("read", &self.content, path)?,
        };
        Ok(value.is_some())
    }

    fn project_node(&self, path: &TreePath) -> Result<Option<Node>, ReadLayerError> {
        match self.project.node(path) {
            Ok(node) => Ok(node),
            Err(error) if is_other_mount(&error) => Ok(None),
            Err(error) => Err(error).within("read", self.project, path)?,
        }
    }

    fn project_children(&self, directory: Option<&TreePath>) -> Result<Children, ReadLayerError> {
        match self.project.children(directory) {
            Ok(children) => Ok(children),
            Err(error) if is_other_mount(&error) || is_absent(&error) => Ok(Vec::new()),
            Err(error) => Err(error).at("read", &self.project.shown(directory))?,
        }
    }
}

/// Whether who wrote the layer can have caused this error.
fn is_of_its_making(error: &std::io::Error) -> bool {
    is_absent(error)
        || matches!(
            error.kind(),
            std::io::ErrorKind::PermissionDenied
                | std::io::ErrorKind::FileTooLarge
                | std::io::ErrorKind::InvalidInput
        )
}

/// Whether another disk is mounted there: no part of the project then.
pub(crate) fn is_other_mount(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(Errno::XDEV.raw_os_error())
}
