//! One layer: where its writes are, and the right to touch them.
//!
//! A [`Layer`] only describes. Everything that reads or changes the content is
//! on a [`HeldLayer`], which has the lock: one sandbox or one merge at a time,
//! also between processes. A retired layer is never held again.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use fluffy_base::id::LayerId;
use fluffy_base::{Clock, SystemClock, Timestamp};
use rustix::fs::{AtFlags, CWD, Mode, chmodat};

use crate::copy::{Limits, remove_tree};
use crate::error::{Explain, FileError};
use crate::record::{LayerKind, LayerRecord, Place};
use crate::tree::{Node, Tree};
use crate::write::sync_directory;

/// What goes back as one when a snapshot is restored.
const STATE: &str = "state";
const LOCK: &str = "lock";
/// A whole state that is about to take the other's place.
pub(crate) const NEXT: &str = "next";
/// How the name of something half made begins.
pub(crate) const UNFINISHED: &str = ".unfinished-";
const UPPER: &str = "upper";
const WORK: &str = "work";
const TREE: &str = "tree";

/// One layer as the store describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    pub(crate) record: LayerRecord,
    pub(crate) folder: PathBuf,
    pub(crate) limits: Limits,
}

/// Where a layer is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerState {
    /// Sandboxes may write to it, and it may be merged.
    Open,
    /// A merge has begun and not ended; [`HeldLayer::resume`] ends it.
    Merging,
    /// It was merged; only the record is left.
    Retired {
        /// When.
        at: Timestamp,
    },
}

/// The directories that a sandbox mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerDirectories {
    /// For an overlay over the project.
    Overlay {
        /// What receives the writes.
        upper: PathBuf,
        /// What the kernel needs for its own work.
        work: PathBuf,
    },
    /// In place of the project.
    Copy {
        /// The copy.
        tree: PathBuf,
    },
}

/// A layer that nothing else uses while this value lives.
#[derive(Debug)]
pub struct HeldLayer {
    layer: Layer,
    lock: File,
}

/// Why a layer cannot be held.
#[derive(Debug, thiserror::Error)]
pub enum HoldLayerError {
    /// A sandbox or a merge is using it.
    #[error("layer `{layer}` is in use by a sandbox or a merge")]
    Busy {
        /// The layer.
        layer: LayerId,
    },
    /// It was merged and is gone.
    #[error("layer `{layer}` was merged and is never used again")]
    Retired {
        /// The layer.
        layer: LayerId,
    },
    /// It was dropped meanwhile.
    #[error("layer `{layer}` is gone")]
    Gone {
        /// The layer.
        layer: LayerId,
    },
    /// A file could not be used.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Why a layer's content or project could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadLayerError {
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The project's directory is not the one the layer was made over.
    #[error("`{}` is not the directory that the layer was made over", project.display())]
    ProjectReplaced {
        /// The path.
        project: PathBuf,
    },
    /// A merge has begun and must be ended first.
    #[error("layer `{layer}` has a merge that was interrupted: resume it first")]
    Merging {
        /// The layer.
        layer: LayerId,
    },
    /// Something wrote to the layer while it was looked at.
    #[error("layer `{layer}` is being written to")]
    Changing {
        /// The layer.
        layer: LayerId,
    },
    /// More entries than allowed.
    #[error("layer `{layer}` touches more than {limit} paths")]
    TooManyEntries {
        /// The layer.
        layer: LayerId,
        /// How many are allowed.
        limit: usize,
    },
    /// A file of the store is not what this program wrote.
    #[error("`{}` is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}

impl Layer {
    /// Its name.
    #[must_use]
    pub fn id(&self) -> LayerId {
        self.record.id
    }

    /// How it keeps the writes apart.
    #[must_use]
    pub fn kind(&self) -> LayerKind {
        self.record.kind
    }

    /// The project below it.
    #[must_use]
    pub fn project(&self) -> &Path {
        &self.record.project
    }

    /// When it was made.
    #[must_use]
    pub fn created(&self) -> Timestamp {
        self.record.created
    }

    /// Where it is in its life.
    #[must_use]
    pub fn state(&self) -> LayerState {
        match self.record.retired {
            Some(at) => LayerState::Retired { at },
            None if self.folder.join(crate::apply::STEPS).exists() => LayerState::Merging,
            None => LayerState::Open,
        }
    }

    /// The directories that a sandbox mounts.
    #[must_use]
    pub fn directories(&self) -> LayerDirectories {
        match self.record.kind {
            LayerKind::Overlay => LayerDirectories::Overlay {
                upper: self.state_folder().join(UPPER),
                work: self.state_folder().join(WORK),
            },
            LayerKind::Copy => LayerDirectories::Copy {
                tree: self.state_folder().join(TREE),
            },
        }
    }

    /// The layer's own directory in the store.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Content, bases and manifest, which belong together.
    pub(crate) fn state_folder(&self) -> PathBuf {
        self.folder.join(STATE)
    }

    /// Removes everything but the record and the lock.
    pub(crate) fn remove_content(&self) -> Result<(), FileError> {
        let folder = &self.folder;
        for entry in std::fs::read_dir(folder).at("read", folder)? {
            let entry = entry.at("read", folder)?;
            let name = entry.file_name();
            let path = entry.path();
            if name == crate::record::FILE || name == LOCK {
                continue;
            }
            if entry.file_type().at("read", &path)?.is_dir() {
                remove_tree(&path)?;
            } else {
                std::fs::remove_file(&path).at("remove", &path)?;
            }
        }
        sync_directory(folder)
    }

    /// Takes the layer for oneself.
    ///
    /// # Errors
    /// Something else has it, or it was merged or dropped.
    pub fn hold(self) -> Result<HeldLayer, HoldLayerError> {
        let layer = self.id();
        let lock = open_lock(&self.folder)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(HoldLayerError::Busy { layer }),
            Err(std::fs::TryLockError::Error(error)) => {
                return Err(error).at("lock", &self.folder)?;
            }
        }
        // Between reading the record and locking, it may have been merged.
        let record = match LayerRecord::read(&self.folder) {
            Ok(record) if record.retired.is_some() => {
                return Err(HoldLayerError::Retired { layer });
            }
            Ok(record) => record,
            Err(_) => return Err(HoldLayerError::Gone { layer }),
        };
        let held = HeldLayer {
            layer: Self { record, ..self },
            lock,
        };
        held.clean_up()?;
        Ok(held)
    }
}

impl HeldLayer {
    pub(crate) fn new(layer: Layer, lock: File) -> Self {
        Self { layer, lock }
    }

    /// The same layer, held as long as either value lives.
    pub(crate) fn shared(&self) -> Result<Self, FileError> {
        Ok(Self {
            layer: self.layer.clone(),
            lock: self.lock.try_clone().at("lock", &self.layer.folder)?,
        })
    }

    /// Goes on under the name that the finished layer has.
    pub(crate) fn moved_to(&mut self, folder: PathBuf) {
        self.layer.folder = folder;
    }

    /// What is held.
    #[must_use]
    pub fn layer(&self) -> &Layer {
        &self.layer
    }

    /// The lock, for a sandbox that must keep it as long as it lives.
    #[must_use]
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// The directories for the next sandbox; a new mount needs a clean `work`.
    ///
    /// An overlay should be mounted with `userxattr`, and with `volatile`, or
    /// the kernel syncs every file that is copied up.
    ///
    /// # Errors
    /// A merge is unfinished, or the directory cannot be made.
    pub fn prepare_mount(&self) -> Result<LayerDirectories, ReadLayerError> {
        self.check_open()?;
        let directories = self.layer.directories();
        if let LayerDirectories::Overlay { work, .. } = &directories {
            remove_tree(work)?;
            crate::write::make_private_directory(work)?;
        }
        Ok(directories)
    }

    /// Opens the project, if it still is the directory it was.
    pub(crate) fn project(&self) -> Result<Tree, ReadLayerError> {
        let project = self.layer.project();
        let tree = Tree::open(project).at("open", project)?;
        if place_of(&tree).at("open", project)? != self.layer.record.place {
            let project = project.to_owned();
            return Err(ReadLayerError::ProjectReplaced { project });
        }
        Ok(tree)
    }

    /// Opens what the sandboxes wrote.
    pub(crate) fn content(&self) -> Result<Tree, FileError> {
        let path = self.content_path();
        Tree::open(&path).at("open", &path)
    }

    /// Where the writes are.
    pub(crate) fn content_path(&self) -> PathBuf {
        match self.layer.directories() {
            LayerDirectories::Overlay { upper, .. } => upper,
            LayerDirectories::Copy { tree } => tree,
        }
    }

    /// Refuses while a merge is unfinished.
    pub(crate) fn check_open(&self) -> Result<(), ReadLayerError> {
        match self.layer.state() {
            LayerState::Open => Ok(()),
            LayerState::Merging | LayerState::Retired { .. } => Err(ReadLayerError::Merging {
                layer: self.layer.id(),
            }),
        }
    }

    /// Marks the layer as merged for good, then removes its content.
    pub(crate) fn retire(&mut self) -> Result<(), FileError> {
        self.layer.record.retired = Some(SystemClock.now());
        self.layer.record.write(&self.layer.folder)?;
        self.layer.remove_content()
    }

    /// Ends or removes what an interrupted snapshot or restore left behind.
    fn clean_up(&self) -> Result<(), FileError> {
        let folder = &self.layer.folder;
        let (state, next) = (self.layer.state_folder(), folder.join(NEXT));
        if next.exists() && !state.exists() {
            std::fs::rename(&next, &state).at("finish", &state)?;
        }
        // Either not in use yet, or in use before: the state is the other one.
        remove_tree(&next)?;
        for directory in [folder.clone(), folder.join(crate::snapshot::FOLDER)] {
            let entries = match std::fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error).at("read", &directory),
            };
            for entry in entries {
                let entry = entry.at("read", &directory)?;
                let name = entry.file_name();
                if name.as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
                    remove_tree(&entry.path())?;
                }
            }
        }
        Ok(())
    }
}

/// Makes the directories of a new layer, and its lock, which is taken.
pub(crate) fn prepare(folder: &Path, kind: LayerKind, mode: u32) -> Result<File, FileError> {
    crate::write::make_private_directory(folder)?;
    let state = folder.join(STATE);
    make_content(&state, kind, mode)?;
    let lock = open_lock(folder)?;
    lock.lock().at("lock", folder)?;
    Ok(lock)
}

/// Makes the empty directories that a sandbox writes to; gives where the
/// content is.
pub(crate) fn make_content(state: &Path, kind: LayerKind, mode: u32) -> Result<PathBuf, FileError> {
    let content = match kind {
        LayerKind::Overlay => {
            crate::write::make_private_directory(&state.join(WORK))?;
            state.join(UPPER)
        }
        LayerKind::Copy => state.join(TREE),
    };
    crate::write::make_private_directory(&content)?;
    // It becomes the root of what the sandbox sees as the project.
    let mode = Mode::from_raw_mode(mode & 0o777 | 0o700);
    chmodat(CWD, &content, mode, AtFlags::empty()).at("prepare", &content)?;
    Ok(content)
}

/// Which directory a tree's root is.
pub(crate) fn place_of(tree: &Tree) -> io::Result<Place> {
    let node = Node::of(&rustix::fs::fstat(tree.root())?)?;
    Ok(Place {
        device: node.identity.device,
        inode: node.identity.inode,
    })
}

fn open_lock(folder: &Path) -> Result<File, FileError> {
    let path = folder.join(LOCK);
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .at("open", &path)
}
