//! All layers of one state directory.
//!
//! A layer appears and disappears by one rename, so a crash leaves none half
//! made; what a crash left under a hidden name is swept the next time the store
//! is opened. Merging is in [`crate::plan`] and [`crate::apply`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fluffy_base::id::LayerId;
use fluffy_base::{Clock, SystemClock};
use fluffy_policy::Permit;

use crate::base::BaseIndex;
use crate::copy::{CopyError, CopyOf, Limits, copy_tree, remove_tree};
use crate::error::{Explain, FileError};
use crate::layer::{HeldLayer, Layer, ReadLayerError, place_of, prepare};
use crate::manifest::Manifest;
use crate::moment::settled_now;
use crate::permit::{self, WrongPermit};
use crate::record::{LayerKind, LayerRecord, ReadRecordError};
use crate::tree::{Node, Tree};
use crate::write::{make_private_directory, sync_directory};

const FOLDER: &str = "layers";

/// How long the record of a merged layer is kept.
const KEPT: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 3600);

/// Where the layers are.
#[derive(Debug, Clone)]
pub struct LayerStore {
    folder: PathBuf,
    limits: Limits,
}

/// All layers, and what could not be read among them.
#[derive(Debug)]
pub struct Listing {
    /// Newest first.
    pub layers: Vec<Layer>,
    /// Directories whose record is unreadable, with why.
    pub damaged: Vec<(PathBuf, ReadRecordError)>,
}

/// Why a layer could not be made; nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub enum CreateLayerError {
    /// The permit is for something else.
    #[error(transparent)]
    Permit(#[from] WrongPermit),
    /// The project and the store would be inside one another.
    #[error("the project `{}` and the state directory must not hold one another", project.display())]
    Nested {
        /// The project.
        project: PathBuf,
    },
    /// The project could not be copied.
    #[error("cannot copy the project `{}`", project.display())]
    Copy {
        /// The project.
        project: PathBuf,
        /// Why.
        #[source]
        source: CopyError,
    },
    /// A file could not be used.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Why no single layer was found.
#[derive(Debug, thiserror::Error)]
pub enum FindLayerError {
    /// No id starts like this.
    #[error("no layer has an id that starts with `{prefix}`")]
    None {
        /// What was looked for.
        prefix: String,
    },
    /// Several ids start like this.
    #[error("{count} layers have an id that starts with `{prefix}`")]
    Ambiguous {
        /// What was looked for.
        prefix: String,
        /// How many.
        count: usize,
    },
    /// The store could not be read.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Why a layer could not be dropped.
#[derive(Debug, thiserror::Error)]
pub enum DropLayerError {
    /// The permit is for something else.
    #[error(transparent)]
    Permit(#[from] WrongPermit),
    /// A file could not be removed; the layer is gone from the list all the same.
    #[error(transparent)]
    File(#[from] FileError),
}

impl LayerStore {
    /// Opens the store in a state directory, and sweeps what a crash left.
    ///
    /// # Errors
    /// The directory cannot be made or read.
    pub fn open(state: &Path) -> Result<Self, FileError> {
        let folder = state.join(FOLDER);
        make_private_directory(&folder)?;
        let store = Self {
            folder,
            limits: Limits::STANDARD,
        };
        store.sweep()?;
        Ok(store)
    }

    /// The same store with other limits for its layers.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// The directory of all layers.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes an empty layer over a project and holds it; the permit is for
    /// [`permit::CREATE`].
    ///
    /// # Errors
    /// The project cannot be read or copied, or the disk is full.
    pub fn create(
        &self,
        permit: Permit,
        project: &Path,
        kind: LayerKind,
    ) -> Result<HeldLayer, CreateLayerError> {
        permit::check(&permit, permit::CREATE)?;
        let project = fs::canonicalize(project).at("find", project)?;
        let store = fs::canonicalize(&self.folder).at("find", &self.folder)?;
        if store.starts_with(&project) || project.starts_with(&store) {
            return Err(CreateLayerError::Nested { project });
        }
        let id = LayerId::generate();
        let unfinished = self.folder.join(format!(".{id}.new"));
        let made = self.fill(&unfinished, id, &project, kind);
        if made.is_err() {
            // What cannot be removed now is swept at the next start.
            let _ = remove_tree(&unfinished);
        }
        drop(permit);
        made
    }

    fn fill(
        &self,
        unfinished: &Path,
        id: LayerId,
        project: &Path,
        kind: LayerKind,
    ) -> Result<HeldLayer, CreateLayerError> {
        let tree = Tree::open(project).at("open", project)?;
        let root = rustix::fs::fstat(tree.root()).at("open", project)?;
        let mode = Node::of(&root).at("open", project)?.permissions();
        let lock = prepare(unfinished, kind, mode)?;
        let moment = settled_now(&tree, unfinished).at("ask the time of", project)?;
        let record = LayerRecord {
            id,
            kind,
            project: project.to_owned(),
            place: place_of(&tree).at("open", project)?,
            created: SystemClock.now(),
            retired: None,
        };
        let finished = self.folder.join(id.to_string());
        let layer = Layer {
            record,
            folder: unfinished.to_owned(),
            limits: self.limits,
        };
        let mut held = HeldLayer::new(layer, lock);
        if kind == LayerKind::Copy {
            self.copy_project(&tree, &held)?;
        }
        BaseIndex::starting_at(moment).save(&held.layer().state_folder())?;
        held.layer().record.write(unfinished)?;
        fs::rename(unfinished, &finished).at("finish", &finished)?;
        sync_directory(&self.folder)?;
        held.moved_to(finished);
        Ok(held)
    }

    fn copy_project(&self, project: &Tree, held: &HeldLayer) -> Result<(), CreateLayerError> {
        let mut manifest = Manifest::default();
        let target = held.content()?;
        copy_tree(
            project,
            &target,
            CopyOf::Project,
            &self.limits,
            |path, _, copy| manifest.insert(path.clone(), copy),
        )
        .map_err(|source| CreateLayerError::Copy {
            project: project.shown(None),
            source,
        })?;
        Ok(manifest.save(&held.layer().state_folder())?)
    }

    /// All layers, merged ones included.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn list(&self) -> Result<Listing, FileError> {
        let mut listing = Listing {
            layers: Vec::new(),
            damaged: Vec::new(),
        };
        for entry in fs::read_dir(&self.folder).at("read", &self.folder)? {
            let entry = entry.at("read", &self.folder)?;
            let name = entry.file_name();
            let is_layer = name
                .to_str()
                .is_some_and(|name| name.parse::<LayerId>().is_ok());
            if !is_layer {
                continue;
            }
            let folder = entry.path();
            match LayerRecord::read(&folder) {
                Ok(record) => listing.layers.push(Layer {
                    record,
                    folder,
                    limits: self.limits,
                }),
                Err(error) => listing.damaged.push((folder, error)),
            }
        }
        listing
            .layers
            .sort_by_key(|layer| std::cmp::Reverse(layer.id()));
        Ok(listing)
    }

    /// The one layer whose id starts like this, with or without `lay_`.
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn find(&self, prefix: &str) -> Result<Layer, FindLayerError> {
        let matches = |layer: &Layer| {
            let id = layer.id().to_string();
            id.starts_with(prefix)
                || id
                    .strip_prefix("lay_")
                    .is_some_and(|body| body.starts_with(&prefix.to_uppercase()))
        };
        let mut found = self.list()?.layers;
        found.retain(matches);
        let prefix: String = prefix.chars().take(64).collect();
        match found.len() {
            0 => Err(FindLayerError::None { prefix }),
            1 => found.pop().ok_or(FindLayerError::None { prefix }),
            count => Err(FindLayerError::Ambiguous { prefix, count }),
        }
    }

    /// Removes a layer with all that is in it; the permit is for
    /// [`permit::DROP`].
    ///
    /// # Errors
    /// The permit is for something else, or a file cannot be removed.
    pub fn drop_layer(&self, permit: Permit, held: HeldLayer) -> Result<(), DropLayerError> {
        permit::check_for(&permit, permit::DROP, held.layer().id())?;
        Ok(self.remove(&held)?)
    }

    /// Gives an empty layer back; says whether it was empty. Needs no permit:
    /// there is nothing to lose.
    ///
    /// # Errors
    /// The layer cannot be read, or a file cannot be removed.
    pub fn give_back(&self, held: HeldLayer) -> Result<bool, ReadLayerError> {
        let changes = held.changes()?;
        let is_empty = changes.list.is_empty() && changes.problems.is_empty();
        if is_empty {
            self.remove(&held)?;
        }
        Ok(is_empty)
    }

    fn remove(&self, held: &HeldLayer) -> Result<(), FileError> {
        let folder = held.layer().folder();
        let hidden = self.folder.join(format!(".{}.dropped", held.layer().id()));
        fs::rename(folder, &hidden).at("remove", folder)?;
        sync_directory(&self.folder)?;
        remove_tree(&hidden)
    }

    /// Removes layers that were never finished or not wholly removed, and what
    /// a merged one still holds.
    fn sweep(&self) -> Result<(), FileError> {
        for entry in fs::read_dir(&self.folder).at("read", &self.folder)? {
            let entry = entry.at("read", &self.folder)?;
            let name = entry.file_name();
            let is_left_over = name.to_str().is_some_and(|name| {
                name.starts_with(".lay_") && (name.ends_with(".new") || name.ends_with(".dropped"))
            });
            if is_left_over && !is_locked(&entry.path()) {
                remove_tree(&entry.path())?;
            }
        }
        for layer in self.list()?.layers {
            let Some(retired) = layer.record.retired else {
                continue;
            };
            if SystemClock.now().since(retired) > KEPT {
                remove_tree(layer.folder())?;
            } else if !is_locked(layer.folder()) {
                layer.remove_content()?;
            }
        }
        Ok(())
    }
}

/// Whether a living process is still making or removing it.
fn is_locked(folder: &Path) -> bool {
    let lock = match fs::File::open(folder.join("lock")) {
        Ok(lock) => lock,
        // Just made, and not locked yet: left for the next sweep unless old.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return is_young(folder),
        Err(_) => return true,
    };
    lock.try_lock().is_err()
}

fn is_young(folder: &Path) -> bool {
    let age = fs::metadata(folder)
        .and_then(|metadata| metadata.modified())
        .map(|time| time.elapsed().unwrap_or_default());
    age.is_ok_and(|age| age < std::time::Duration::from_secs(60))
}
