//! What a copy was when it was made: whatever differs was touched since.
//!
//! Only for layers of kind copy. An overlay keeps the touched files apart by
//! itself; in a copy, the inode's number and its time of change say it, and no
//! program in the sandbox can set either back.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Explain, FileError};
use crate::layer::ReadLayerError;
use crate::path::TreePath;
use crate::record::{json, parse_lines};
use crate::tree::{Node, NodeKind};
use crate::write::{read_record, write_record};

const FILE: &str = "manifest.jsonl";
const LIMIT: u64 = 1 << 30;

/// All entries of a fresh copy.
#[derive(Debug, Clone, Default)]
pub(crate) struct Manifest {
    entries: BTreeMap<TreePath, Stamp>,
}

/// What tells an untouched entry from a touched one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    kind: NodeKind,
    mode: u32,
    inode: u64,
    size: u64,
    changed: i64,
}

#[derive(Serialize, Deserialize)]
struct Line {
    path: TreePath,
    stamp: Stamp,
}

impl Manifest {
    /// Notes an entry of the copy.
    pub(crate) fn insert(&mut self, path: TreePath, node: &Node) {
        self.entries.insert(path, Stamp::of(node));
    }

    /// Goes on in a copy of the copy: what was untouched still is.
    pub(crate) fn carry_over(&mut self, path: &TreePath, source: &Node, copy: &Node) {
        if self.is_untouched(path, source) {
            self.insert(path.clone(), copy);
        }
    }

    /// Whether the copy had this path.
    pub(crate) fn contains(&self, path: &TreePath) -> bool {
        self.entries.contains_key(path)
    }

    /// Whether an entry is as it was when it was copied.
    pub(crate) fn is_untouched(&self, path: &TreePath, node: &Node) -> bool {
        self.entries.get(path) == Some(&Stamp::of(node))
    }

    /// The paths the copy had.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &TreePath> {
        self.entries.keys()
    }

    /// Writes it into the layer's directory.
    pub(crate) fn save(&self, folder: &Path) -> Result<(), FileError> {
        let path = folder.join(FILE);
        let mut bytes = Vec::new();
        for (entry, stamp) in &self.entries {
            let line = Line {
                path: entry.clone(),
                stamp: *stamp,
            };
            bytes.extend(json(&line).at("write", &path)?);
        }
        write_record(folder, FILE, &bytes)
    }

    /// Reads it back.
    pub(crate) fn load(folder: &Path) -> Result<Self, ReadLayerError> {
        let path = folder.join(FILE);
        let damaged = || ReadLayerError::Damaged { path: path.clone() };
        let bytes = read_record(&path, LIMIT)?.ok_or_else(damaged)?;
        let lines: Vec<Line> = parse_lines(&bytes).ok_or_else(damaged)?;
        let entries = lines
            .into_iter()
            .map(|line| (line.path, line.stamp))
            .collect();
        Ok(Self { entries })
    }
}

impl Stamp {
    fn of(node: &Node) -> Self {
        // A directory changes whenever something in it does; its own state is
        // only what it is and who may enter.
        let counts = node.kind != NodeKind::Directory;
        Self {
            kind: node.kind,
            mode: node.mode,
            inode: if counts { node.identity.inode } else { 0 },
            size: if counts { node.identity.size } else { 0 },
            changed: if counts { node.identity.changed } else { 0 },
        }
    }
}
