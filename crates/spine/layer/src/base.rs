//! What the project had at each touched path before the layer touched it.
//!
//! The third side of a three-way merge. Content is kept by its digest, texts
//! only; for the rest it is enough to know whether the project still has the
//! same. What cannot be known is written down as unknown, never guessed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fluffy_base::Digest;
use serde::{Deserialize, Serialize};

use crate::error::{Explain, FileError};
use crate::layer::ReadLayerError;
use crate::moment::Moment;
use crate::path::TreePath;
use crate::record::{json, parse_lines};
use crate::tree::{Identity, NodeKind};
use crate::write::{make_private_directory, read_record, write_record};

const INDEX: &str = "base.jsonl";
const MOMENT: &str = "moment";
const TEXTS: &str = "base";
const LIMIT: u64 = 1 << 30;

/// What the project had at one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "was", rename_all = "kebab-case")]
pub(crate) enum Base {
    /// The project changed around the same time: nobody can say.
    Unknown,
    /// Nothing.
    Absent,
    /// A regular file; the digest is left out where the layer only removes it.
    File {
        mode: u32,
        identity: Identity,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<Digest>,
    },
    /// A directory.
    Directory { mode: u32 },
    /// A symbolic link, escaped.
    Symlink { target: String },
    /// A pipe, socket or device.
    Special { kind: NodeKind },
}

/// The bases of all touched paths, and until when the rest is unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BaseIndex {
    /// Paths not in the index were untouched by the layer at this moment.
    pub(crate) moment: Moment,
    pub(crate) entries: BTreeMap<TreePath, Base>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Since(Moment),
    Base { path: TreePath, base: Base },
}

impl BaseIndex {
    /// An index in which nothing has been touched yet.
    pub(crate) fn starting_at(moment: Moment) -> Self {
        Self {
            moment,
            entries: BTreeMap::new(),
        }
    }

    /// Writes it, as a whole, into a layer's or a snapshot's directory.
    pub(crate) fn save(&self, folder: &Path) -> Result<(), FileError> {
        let shown = folder.join(INDEX);
        let mut bytes = json(&Line::Since(self.moment)).at("write", &shown)?;
        for (path, base) in &self.entries {
            let line = Line::Base {
                path: path.clone(),
                base: base.clone(),
            };
            bytes.extend(json(&line).at("write", &shown)?);
        }
        write_record(folder, INDEX, &bytes)
    }

    /// Notes a later moment for an index that is otherwise the same.
    ///
    /// Not synced: if a power cut takes it, the earlier moment holds, and that
    /// only leaves more unknown.
    pub(crate) fn save_moment(&self, folder: &Path) -> Result<(), FileError> {
        let (path, fresh) = (folder.join(MOMENT), folder.join(".moment.new"));
        std::fs::write(&fresh, self.moment.to_string()).at("write", &fresh)?;
        std::fs::rename(&fresh, &path).at("replace", &path)
    }

    /// Reads it back.
    pub(crate) fn load(folder: &Path) -> Result<Self, ReadLayerError> {
        let mut index = Self::load_index(folder)?;
        let later = read_record(&folder.join(MOMENT), 64)?
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .and_then(|text| text.parse().ok());
        index.moment = later.unwrap_or(index.moment).max(index.moment);
        Ok(index)
    }

    fn load_index(folder: &Path) -> Result<Self, ReadLayerError> {
        let path = folder.join(INDEX);
        let damaged = || ReadLayerError::Damaged { path: path.clone() };
        let bytes = read_record(&path, LIMIT)?.ok_or_else(damaged)?;
        let mut lines = parse_lines(&bytes).ok_or_else(damaged)?.into_iter();
        let Some(Line::Since(moment)) = lines.next() else {
            return Err(damaged());
        };
        let mut index = Self::starting_at(moment);
        for line in lines {
            let Line::Base { path, base } = line else {
                return Err(damaged());
            };
            index.entries.insert(path, base);
        }
        Ok(index)
    }
}

/// The texts that bases name by their digest.
#[derive(Debug)]
pub(crate) struct BaseTexts {
    folder: PathBuf,
}

impl BaseTexts {
    /// The texts of the layer in this directory.
    pub(crate) fn of_layer(folder: &Path) -> Self {
        Self {
            folder: folder.join(TEXTS),
        }
    }

    /// Keeps a text.
    pub(crate) fn keep(&self, digest: Digest, text: &[u8]) -> Result<(), FileError> {
        let path = self.folder.join(digest.to_string());
        if path.exists() {
            return Ok(());
        }
        make_private_directory(&self.folder)?;
        // Not synced: a text that a power cut damaged is no text, and that only
        // turns a clean three-way merge into a conflict.
        std::fs::write(&path, text).at("write", &path)
    }

    /// A kept text; nothing if it was not kept or is not what it was.
    pub(crate) fn get(&self, digest: Digest, limit: u64) -> Option<Vec<u8>> {
        let path = self.folder.join(digest.to_string());
        let bytes = read_record(&path, limit).ok()??;
        (Digest::of(&bytes) == digest).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_survives_being_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut index = BaseIndex::starting_at(1_763_193_600_000_000_123);
        let identity = Identity {
            device: u64::MAX,
            inode: 2,
            size: 3,
            changed: -4,
        };
        for (name, base) in [
            ("unknown", Base::Unknown),
            ("absent", Base::Absent),
            ("dir", Base::Directory { mode: 0o755 }),
            (
                "link",
                Base::Symlink {
                    target: "\\xff".to_owned(),
                },
            ),
            (
                "file",
                Base::File {
                    mode: 0o644,
                    identity,
                    digest: Some(Digest::of(b"x")),
                },
            ),
            (
                "pipe",
                Base::Special {
                    kind: NodeKind::Fifo,
                },
            ),
        ] {
            index
                .entries
                .insert(TreePath::parse(name.as_bytes()).unwrap(), base);
        }
        index.save(folder.path()).unwrap();
        assert_eq!(BaseIndex::load(folder.path()).unwrap(), index);
        let path = folder.path().join(INDEX);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        assert!(matches!(
            BaseIndex::load(folder.path()),
            Err(ReadLayerError::Damaged { .. })
        ));
    }

    #[test]
    fn a_damaged_text_is_no_text() {
        let folder = tempfile::tempdir().unwrap();
        let texts = BaseTexts::of_layer(folder.path());
        let digest = Digest::of(b"text");
        texts.keep(digest, b"text").unwrap();
        assert_eq!(texts.get(digest, 100).as_deref(), Some(&b"text"[..]));
        std::fs::write(folder.path().join(TEXTS).join(digest.to_string()), "tent").unwrap();
        assert_eq!(texts.get(digest, 100), None);
    }
}
