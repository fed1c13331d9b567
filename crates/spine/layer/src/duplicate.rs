//! A second layer with the content of a first one.
//!
//! The first is only read, and held by the caller meanwhile. What the project
//! had below it comes along, so that both merge as well as one would have.

use std::path::Path;

use fluffy_base::id::LayerId;
use fluffy_base::{Clock, SystemClock};
use fluffy_policy::Permit;

use crate::base::{Base, BaseIndex, BaseTexts};
use crate::copy::{CopyError, remove_tree};
use crate::error::{Explain, FileError};
use crate::layer::{HeldLayer, Layer, ReadLayerError, prepare};
use crate::permit::{self, WrongPermit};
use crate::record::LayerRecord;
use crate::store::LayerStore;
use crate::write::sync_directory;

/// Why there is no second layer; the first is as it was.
#[derive(Debug, thiserror::Error)]
pub enum DuplicateLayerError {
    /// The permit is for something else.
    #[error(transparent)]
    Permit(#[from] WrongPermit),
    /// The first layer cannot be read.
    #[error(transparent)]
    Read(#[from] ReadLayerError),
    /// The content cannot be copied.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// A file could not be written.
    #[error(transparent)]
    File(#[from] FileError),
}

impl LayerStore {
    /// Makes another layer with the same content and holds it; the permit is
    /// for [`permit::CREATE`].
    ///
    /// # Errors
    /// The layer cannot be read or copied, or the disk is full.
    pub fn duplicate(
        &self,
        permit: Permit,
        source: &HeldLayer,
    ) -> Result<HeldLayer, DuplicateLayerError> {
        permit::check(&permit, permit::CREATE)?;
        source.check_open()?;
        let id = LayerId::generate();
        let unfinished = self.folder().join(format!(".{id}.new"));
        let made = self.fill_from(source, id, &unfinished);
        if made.is_err() {
            // What cannot be removed now is swept at the next start.
            let _ = remove_tree(&unfinished);
        }
        drop(permit);
        made
    }

    fn fill_from(
        &self,
        source: &HeldLayer,
        id: LayerId,
        unfinished: &Path,
    ) -> Result<HeldLayer, DuplicateLayerError> {
        let first = source.layer();
        let index = source.settled()?.index;
        let state = first.state_folder();
        let manifest = source.manifest_in(&state)?;
        let lock = prepare(unfinished, first.kind(), 0o700)?;
        let record = LayerRecord {
            id,
            created: SystemClock.now(),
            ..first.record.clone()
        };
        let layer = Layer {
            record,
            folder: unfinished.to_owned(),
            limits: first.limits,
        };
        let mut held = HeldLayer::new(layer, lock);
        let target = held.layer().state_folder();
        source.copy_state((&state, &target), &index, manifest, &first.limits)?;
        copy_texts(source, unfinished, &index)?;
        held.layer().record.write(unfinished)?;
        let finished = self.folder().join(id.to_string());
        std::fs::rename(unfinished, &finished).at("finish", &finished)?;
        sync_directory(self.folder())?;
        held.moved_to(finished);
        Ok(held)
    }
}

/// What the project had, as far as it was kept.
fn copy_texts(source: &HeldLayer, into: &Path, index: &BaseIndex) -> Result<(), FileError> {
    let from = BaseTexts::of_layer(source.layer().folder());
    let to = BaseTexts::of_layer(into);
    for base in index.entries.values() {
        let Base::File {
            digest: Some(digest),
            ..
        } = base
        else {
            continue;
        };
        if let Some(text) = from.get(*digest, source.layer().limits.text) {
            to.keep(*digest, &text)?;
        }
    }
    Ok(())
}
