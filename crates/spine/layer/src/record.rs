//! What the store knows about a layer, and how that is written down.
//!
//! One small file per layer, replaced as a whole. It never says anything about
//! the content: that is the layer's directory itself.

use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use fluffy_base::Timestamp;
use fluffy_base::id::LayerId;
use serde::{Deserialize, Serialize};

use crate::error::{Explain, FileError};
use crate::path::{escape, unescape};
use crate::write::{read_record, write_record};

/// The record's name in the layer's directory.
pub(crate) const FILE: &str = "layer.json";

/// The version of the format that this program writes, and the only one it reads.
const VERSION: u32 = 1;

/// The most bytes a record can have.
const LIMIT: u64 = 64 * 1024;

/// How a layer keeps the writes apart from the project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerKind {
    /// The upper directory of an overlay over the project.
    Overlay,
    /// A copy of the whole project.
    Copy,
}

/// Which directory a project was when its layer was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// What is written down about one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LayerRecord {
    pub(crate) id: LayerId,
    pub(crate) kind: LayerKind,
    pub(crate) project: PathBuf,
    pub(crate) place: Place,
    pub(crate) created: Timestamp,
    pub(crate) retired: Option<Timestamp>,
}

/// Why a layer's record could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadRecordError {
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no record: the layer was never finished.
    #[error("`{}` has no record of a layer", folder.display())]
    Missing {
        /// The layer's directory.
        folder: PathBuf,
    },
    /// It is not what this program writes.
    #[error("`{}` is not a record of a layer", path.display())]
    Malformed {
        /// The record.
        path: PathBuf,
    },
    /// A newer program wrote it.
    #[error("`{}` has version {version}, and this program reads version {VERSION}", path.display())]
    Version {
        /// The record.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
}

/// The record as it is written, apart from the type that is worked with.
#[derive(Serialize, Deserialize)]
struct Written {
    version: u32,
    id: LayerId,
    kind: LayerKind,
    project: String,
    place: Place,
    created: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retired: Option<Timestamp>,
}

impl LayerRecord {
    /// Reads the record in a layer's directory.
    pub(crate) fn read(folder: &Path) -> Result<Self, ReadRecordError> {
        let path = folder.join(FILE);
        let Some(bytes) = read_record(&path, LIMIT)? else {
            let folder = folder.to_owned();
            return Err(ReadRecordError::Missing { folder });
        };
        let malformed = || ReadRecordError::Malformed { path: path.clone() };
        let written: Written = serde_json::from_slice(&bytes).map_err(|_| malformed())?;
        if written.version != VERSION {
            let version = written.version;
            return Err(ReadRecordError::Version { path, version });
        }
        let project = unescape(&written.project).ok_or_else(malformed)?;
        Ok(Self {
            id: written.id,
            kind: written.kind,
            project: PathBuf::from(std::ffi::OsString::from_vec(project)),
            place: written.place,
            created: written.created,
            retired: written.retired,
        })
    }

    /// Puts the record in place, durably.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), FileError> {
        let written = Written {
            version: VERSION,
            id: self.id,
            kind: self.kind,
            project: escape(self.project.as_os_str().as_bytes()),
            place: self.place,
            created: self.created,
            retired: self.retired,
        };
        let bytes = json(&written).at("write", &folder.join(FILE))?;
        write_record(folder, FILE, &bytes)
    }
}

/// A value of ours as a line of JSON.
pub(crate) fn json(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(value)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// The lines that [`json`] wrote, or nothing if one of them is not whole.
pub(crate) fn parse_lines<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Option<Vec<T>> {
    bytes
        .split_inclusive(|byte| *byte == b'\n')
        .map(|line| serde_json::from_slice(line.strip_suffix(b"\n")?).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> LayerRecord {
        LayerRecord {
            id: LayerId::from_bits(7),
            kind: LayerKind::Overlay,
            project: PathBuf::from(std::ffi::OsString::from_vec(b"/home/x\xff\n".to_vec())),
            place: Place {
                device: 1,
                inode: 2,
            },
            created: Timestamp::from_micros(5),
            retired: None,
        }
    }

    #[test]
    fn a_record_survives_whatever_the_project_is_called() {
        let folder = tempfile::tempdir().unwrap();
        record().write(folder.path()).unwrap();
        assert_eq!(LayerRecord::read(folder.path()).unwrap(), record());
    }

    #[test]
    fn another_version_and_nonsense_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        assert!(matches!(
            LayerRecord::read(folder.path()),
            Err(ReadRecordError::Missing { .. })
        ));
        record().write(folder.path()).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"version\":1", "\"version\":2")).unwrap();
        assert!(matches!(
            LayerRecord::read(folder.path()),
            Err(ReadRecordError::Version { version: 2, .. })
        ));
        std::fs::write(&path, "{}").unwrap();
        assert!(matches!(
            LayerRecord::read(folder.path()),
            Err(ReadRecordError::Malformed { .. })
        ));
    }
}
