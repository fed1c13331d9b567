//! Kept states of a layer, and going back to one.
//!
//! A snapshot shares blocks with the layer where the disk can. Going back
//! replaces content and bases by one exchange of directories: a crash leaves
//! the old state or the new one.

use std::path::{Path, PathBuf};

use fluffy_base::id::SnapshotId;
use fluffy_base::{Clock, SystemClock, Timestamp};
use fluffy_policy::Permit;
use rustix::fs::{CWD, RenameFlags, fstat, renameat_with, syncfs};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::base::BaseIndex;
use crate::copy::{CopyError, CopyOf, Limits, copy_tree, remove_tree};
use crate::error::{Explain, FileError};
use crate::layer::{HeldLayer, NEXT, ReadLayerError, UNFINISHED, make_content};
use crate::manifest::Manifest;
use crate::permit::{self, WrongPermit};
use crate::record::{LayerKind, json};
use crate::tree::{Node, Tree};
use crate::write::{make_private_directory, read_record, sync_directory, write_record};

/// Where the snapshots of a layer are.
pub(crate) const FOLDER: &str = "snapshots";

const RECORD: &str = "snapshot.json";
const LIMIT: u64 = 4096;

/// One kept state of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its name.
    pub id: SnapshotId,
    /// When it was taken.
    pub taken: Timestamp,
}

/// Why a snapshot could not be taken; the layer is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The layer cannot be read.
    #[error(transparent)]
    Read(#[from] ReadLayerError),
    /// The content cannot be copied.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// A file could not be written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Why a layer could not go back; it is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The permit is for something else.
    #[error(transparent)]
    Permit(#[from] WrongPermit),
    /// The layer has no such snapshot.
    #[error("the layer has no snapshot `{snapshot}`")]
    None {
        /// What was asked for.
        snapshot: SnapshotId,
    },
    /// The layer or the snapshot cannot be read.
    #[error(transparent)]
    Read(#[from] ReadLayerError),
    /// The content cannot be copied.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// A file could not be written.
    #[error(transparent)]
    File(#[from] FileError),
}

impl HeldLayer {
    /// Keeps the layer as it is now.
    ///
    /// # Errors
    /// It cannot be read or copied, or the disk is full.
    pub fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        self.snapshot_within(self.layer().limits.bytes)
    }

    /// As [`HeldLayer::snapshot`], but of no more than this many bytes.
    ///
    /// # Errors
    /// As [`HeldLayer::snapshot`], or the layer is larger.
    pub fn snapshot_within(&self, bytes: u64) -> Result<Snapshot, SnapshotError> {
        self.check_open()?;
        let index = self.settled()?.index;
        let source = self.layer().state_folder();
        let manifest = self.manifest_in(&source)?;
        let snapshot = Snapshot {
            id: SnapshotId::generate(),
            taken: SystemClock.now(),
        };
        let folder = self.snapshots_folder();
        make_private_directory(&folder)?;
        let unfinished = folder.join(format!("{UNFINISHED}{}", snapshot.id));
        let limits = Limits {
            bytes,
            ..self.layer().limits
        };
        let copied = self.copy_state((&source, &unfinished), &index, manifest, &limits);
        if let Err(error) = copied {
            // What cannot be removed now is removed when the layer is held next.
            let _ = remove_tree(&unfinished);
            return Err(error.into());
        }
        let record = json(&snapshot).at("write", &unfinished)?;
        write_record(&unfinished, RECORD, &record)?;
        let finished = folder.join(snapshot.id.to_string());
        std::fs::rename(&unfinished, &finished).at("finish", &finished)?;
        sync_directory(&folder)?;
        Ok(snapshot)
    }

    /// The snapshots of the layer, oldest first.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>, ReadLayerError> {
        let folder = self.snapshots_folder();
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).at("read", &folder)?,
        };
        let mut snapshots = Vec::new();
        for entry in entries {
            let path = entry.at("read", &folder)?.path();
            let damaged = || ReadLayerError::Damaged { path: path.clone() };
            let bytes = read_record(&path.join(RECORD), LIMIT)?.ok_or_else(damaged)?;
            snapshots.push(serde_json::from_slice(&bytes).map_err(|_| damaged())?);
        }
        snapshots.sort_by_key(|snapshot: &Snapshot| snapshot.id);
        Ok(snapshots)
    }

    /// Goes back to a snapshot, which stays; the permit is for
    /// [`permit::RESTORE`].
    ///
    /// # Errors
    /// There is no such snapshot, or it cannot be copied; nothing has changed.
    pub fn restore(&self, permit: Permit, snapshot: SnapshotId) -> Result<(), RestoreError> {
        permit::check_for(&permit, permit::RESTORE, self.layer().id())?;
        self.check_open()?;
        let source = self.snapshots_folder().join(snapshot.to_string());
        if !source.join(RECORD).exists() {
            return Err(RestoreError::None { snapshot });
        }
        let index = BaseIndex::load(&source)?;
        let manifest = self.manifest_in(&source)?;
        let folder = self.layer().folder();
        let unfinished = folder.join(format!("{UNFINISHED}{snapshot}"));
        remove_tree(&unfinished)?;
        let limits = &self.layer().limits;
        let copied = self.copy_state((&source, &unfinished), &index, manifest, limits);
        if let Err(error) = copied {
            let _ = remove_tree(&unfinished);
            return Err(error.into());
        }
        let next = folder.join(NEXT);
        std::fs::rename(&unfinished, &next).at("finish", &next)?;
        self.exchange()?;
        sync_directory(folder)?;
        drop(permit);
        Ok(remove_tree(&next)?)
    }

    /// Throws a snapshot away; one that is not there is gone already.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn forget(&self, snapshot: SnapshotId) -> Result<(), FileError> {
        let folder = self.snapshots_folder();
        let path = folder.join(snapshot.to_string());
        let hidden = folder.join(format!("{UNFINISHED}{snapshot}"));
        match std::fs::rename(&path, &hidden) {
            Ok(()) => remove_tree(&hidden),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error).at("remove", &path),
        }
    }

    fn snapshots_folder(&self) -> PathBuf {
        self.layer().folder().join(FOLDER)
    }

    /// Puts the next state in the place of the present one.
    fn exchange(&self) -> Result<(), FileError> {
        let (state, next) = (
            self.layer().state_folder(),
            self.layer().folder().join(NEXT),
        );
        match renameat_with(CWD, &next, CWD, &state, RenameFlags::EXCHANGE) {
            Err(Errno::INVAL | Errno::NOSYS) => {}
            other => return other.at("replace", &state),
        }
        // In two steps where one is not to be had; holding the layer ends it.
        let old = self.layer().folder().join(format!("{UNFINISHED}old"));
        std::fs::rename(&state, &old).at("replace", &state)?;
        std::fs::rename(&next, &state).at("replace", &state)?;
        remove_tree(&old)
    }

    pub(crate) fn manifest_in(&self, state: &Path) -> Result<Option<Manifest>, ReadLayerError> {
        match self.layer().kind() {
            LayerKind::Overlay => Ok(None),
            LayerKind::Copy => Manifest::load(state).map(Some),
        }
    }

    /// Copies a whole state into another directory, durably.
    pub(crate) fn copy_state(
        &self,
        (source, target): (&Path, &Path),
        index: &BaseIndex,
        mut manifest: Option<Manifest>,
        limits: &Limits,
    ) -> Result<(), CopyError> {
        let kind = self.layer().kind();
        let content = self.content_path();
        let name = content.file_name().unwrap_or_default();
        let from_path = source.join(name);
        let from = Tree::open(&from_path).at("open", &from_path)?;
        let stat = fstat(from.root()).at("open", &from_path)?;
        let mode = Node::of(&stat).at("open", &from_path)?.mode;
        let into_path = make_content(target, kind, mode)?;
        let into = Tree::open(&into_path).at("open", &into_path)?;
        copy_tree(&from, &into, CopyOf::Layer, limits, |path, old, new| {
            if let Some(manifest) = &mut manifest {
                manifest.carry_over(path, old, new);
            }
        })?;
        index.save(target)?;
        if let Some(manifest) = manifest {
            manifest.save(target)?;
        }
        syncfs(into.root()).at("sync", &into_path)?;
        Ok(())
    }
}
