//! After every command: what did the project have where the layer wrote?
//!
//! Must be asked soon after the write, while the project still has it. Cheap
//! when nothing new was touched: one walk of the layer, no file read.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_base::Digest;

use crate::base::{Base, BaseIndex, BaseTexts};
use crate::error::{Explain, FileError};
use crate::layer::{HeldLayer, ReadLayerError};
use crate::manifest::Manifest;
use crate::moment::{Moment, just_before};
use crate::path::{TreePath, escape};
use crate::record::LayerKind;
use crate::scan::{Scan, Touched, is_other_mount, scan};
use crate::text::is_text;
use crate::tree::{Node, NodeKind, Tree, digest_of, is_absent, read_at_most};

/// A layer looked through, with the base of every touched path.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) project: Tree,
    pub(crate) content: Tree,
    pub(crate) scan: Scan,
    pub(crate) index: BaseIndex,
}

impl HeldLayer {
    /// Notes what the project had at every newly touched path.
    ///
    /// To be called after every command that could write to the layer.
    ///
    /// # Errors
    /// The layer or the project cannot be read, or the disk is full.
    pub fn settle(&self) -> Result<(), ReadLayerError> {
        self.check_open()?;
        self.settled().map(drop)
    }

    /// As [`HeldLayer::settle`], with everything that was found.
    pub(crate) fn settled(&self) -> Result<Settled, ReadLayerError> {
        let (settled, before) = self.looked_at()?;
        let state = self.layer().state_folder();
        let index = &settled.index;
        if before.entries != index.entries {
            index.save(&state)?;
        } else if before.moment != index.moment {
            index.save_moment(&state)?;
        }
        Ok(settled)
    }

    /// What settling would note, and what is noted until now.
    pub(crate) fn looked_at(&self) -> Result<(Settled, BaseIndex), ReadLayerError> {
        let folder = self.layer().folder();
        let state = self.layer().state_folder();
        let project = self.project()?;
        let mut index = BaseIndex::load(&state)?;
        // Asked before looking, so that no later write is taken for an earlier.
        let moment = just_before(&project, folder).at("ask the time of", &project.shown(None))?;
        let scan = scan(self, &project)?;
        let before = index.clone();
        let paths: BTreeSet<&TreePath> = scan.touched.iter().map(|touched| &touched.path).collect();
        index.entries.retain(|path, _| paths.contains(path));
        self.add_bases(&project, &scan, &mut index)?;
        if self.layer().kind() == LayerKind::Overlay {
            // What is untouched until now was unchanged until now.
            index.moment = moment;
        }
        let content = self.content()?;
        let settled = Settled {
            project,
            content,
            scan,
            index,
        };
        Ok((settled, before))
    }

    fn add_bases(
        &self,
        project: &Tree,
        scan: &Scan,
        index: &mut BaseIndex,
    ) -> Result<(), ReadLayerError> {
        let fresh: Vec<&Touched> = scan
            .touched
            .iter()
            .filter(|touched| !index.entries.contains_key(&touched.path))
            .collect();
        if fresh.is_empty() {
            return Ok(());
        }
        let folder = self.layer().folder();
        let manifest = match self.layer().kind() {
            LayerKind::Overlay => None,
            LayerKind::Copy => Some(Manifest::load(&self.layer().state_folder())?),
        };
        let mut finder = BaseFinder {
            project,
            texts: BaseTexts::of_layer(folder),
            manifest,
            since: index.moment,
            file_limit: self.layer().limits.file,
            text_limit: self.layer().limits.text,
            moved: BTreeMap::new(),
        };
        for touched in fresh {
            let base = finder.base_of(touched)?;
            index.entries.insert(touched.path.clone(), base);
        }
        Ok(())
    }
}

struct BaseFinder<'a> {
    project: &'a Tree,
    texts: BaseTexts,
    manifest: Option<Manifest>,
    since: Moment,
    file_limit: u64,
    text_limit: u64,
    /// Whether a directory may have been put there since.
    moved: BTreeMap<TreePath, bool>,
}

impl BaseFinder<'_> {
    fn base_of(&mut self, touched: &Touched) -> Result<Base, FileError> {
        let path = &touched.path;
        let was_copied = self.manifest.as_ref().map(|copied| copied.contains(path));
        if was_copied == Some(false) {
            return Ok(Base::Absent);
        }
        let node = match self.project.node(path) {
            Ok(Some(node)) => node,
            // Copied, and the project has removed it since.
            Ok(None) if was_copied == Some(true) => return Ok(Base::Unknown),
            Ok(None) => return Ok(Base::Absent),
            Err(error) if is_other_mount(&error) => return Ok(Base::Unknown),
            Err(error) => return Err(error).within("read", self.project, path),
        };
        // A directory's own time of change says nothing about its entries, and
        // its mode is compared as it is now.
        let is_directory = node.kind == NodeKind::Directory;
        if (!is_directory && node.identity.changed > self.since) || self.may_be_moved(path)? {
            return Ok(Base::Unknown);
        }
        match node.kind {
            NodeKind::Directory => Ok(Base::Directory { mode: node.mode }),
            NodeKind::Symlink => {
                let target = self.project.link_target(path);
                let target = target.within("read", self.project, path)?;
                Ok(Base::Symlink {
                    target: escape(&target),
                })
            }
            NodeKind::File => self.base_of_file(touched, &node),
            kind => Ok(Base::Special { kind }),
        }
    }

    fn base_of_file(&self, touched: &Touched, node: &Node) -> Result<Base, FileError> {
        let path = &touched.path;
        let is_replaced = touched.node.is_some_and(|node| node.kind == NodeKind::File);
        let mut digest = None;
        if is_replaced && node.identity.size <= self.file_limit {
            let Some(found) = self.keep(path, node)? else {
                return Ok(Base::Unknown);
            };
            digest = Some(found);
        }
        Ok(Base::File {
            mode: node.mode,
            identity: node.identity,
            digest,
        })
    }

    /// The digest of a file of the project, whose text is kept; nothing if the
    /// file changed while it was read.
    fn keep(&self, path: &TreePath, node: &Node) -> Result<Option<Digest>, FileError> {
        let (file, opened) = match self.project.file(path) {
            Ok(opened) => opened,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(error).within("read", self.project, path),
        };
        let digest = if opened.identity.size <= self.text_limit {
            let bytes = read_at_most(&file, opened.identity.size, self.text_limit).within(
                "read",
                self.project,
                path,
            )?;
            let digest = Digest::of(&bytes);
            if is_text(&bytes) {
                self.texts.keep(digest, &bytes)?;
            }
            digest
        } else {
            digest_of(&file).within("read", self.project, path)?
        };
        let after = rustix::fs::fstat(&file).within("read", self.project, path)?;
        let after = Node::of(&after).within("read", self.project, path)?;
        let unchanged = opened.identity == node.identity && after.identity == node.identity;
        Ok(unchanged.then_some(digest))
    }

    /// Whether a directory above the path was renamed into its place since.
    ///
    /// A rename changes the directory's time of change but not its time of
    /// modification; names that come and go in it change both alike.
    fn may_be_moved(&mut self, path: &TreePath) -> Result<bool, FileError> {
        for directory in path.ancestors() {
            let known = self.moved.get(&directory).copied();
            let moved = match known {
                Some(moved) => moved,
                None => {
                    let node = self.project.node(&directory);
                    let node = node.within("read", self.project, &directory)?;
                    let moved = node.is_none_or(|node| {
                        node.kind != NodeKind::Directory
                            || (node.identity.changed > self.since
                                && node.identity.changed != node.modified)
                    });
                    self.moved.insert(directory, moved);
                    moved
                }
            };
            if moved {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
