//! What files looked like before, to compare with after.
//!
//! Never follows a link. Small canary trees only; an attack cannot make them
//! large without that being a difference in itself.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Files larger than this are compared by their size alone.
const LARGEST_COMPARED: u64 = 1 << 20;

/// More entries than this are a difference in themselves.
const MOST_ENTRIES: usize = 10_000;

/// What is at one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fingerprint {
    /// Nothing.
    Absent,
    /// A file: its mode, its number of links, its size and its bytes.
    File(u32, u64, u64, Vec<u8>),
    /// A link, and where to.
    Link(PathBuf),
    /// A folder, and its mode.
    Folder(u32),
    /// A socket.
    Socket,
    /// Anything else, by mode.
    Other(u32),
}

impl Fingerprint {
    /// Looks at one path without following it.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let about = match fs::symlink_metadata(path) {
            Ok(about) => about,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(Self::Absent);
            }
            Err(error) => return Err(error),
        };
        let kind = about.file_type();
        Ok(if kind.is_file() {
            let bytes = if about.len() <= LARGEST_COMPARED {
                fs::read(path)?
            } else {
                Vec::new()
            };
            Self::File(about.mode(), about.nlink(), about.len(), bytes)
        } else if kind.is_symlink() {
            Self::Link(fs::read_link(path)?)
        } else if kind.is_dir() {
            Self::Folder(about.mode())
        } else if kind.is_socket() {
            Self::Socket
        } else {
            Self::Other(about.mode())
        })
    }
}

/// Everything below some folders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    entries: BTreeMap<PathBuf, Fingerprint>,
}

impl Snapshot {
    /// Looks at all of `folders`, and at the names directly in `parent`.
    pub(crate) fn of(folders: &[PathBuf], parent: &Path) -> io::Result<Self> {
        let mut entries = BTreeMap::new();
        for entry in fs::read_dir(parent)? {
            // Their contents count only if they are among `folders`.
            entries.insert(entry?.path(), Fingerprint::Absent);
        }
        let mut pending = folders.to_vec();
        while let Some(path) = pending.pop() {
            let fingerprint = Fingerprint::of(&path)?;
            if matches!(fingerprint, Fingerprint::Folder(_)) && entries.len() < MOST_ENTRIES {
                for entry in fs::read_dir(&path)? {
                    pending.push(entry?.path());
                }
            }
            entries.insert(path, fingerprint);
        }
        Ok(Self { entries })
    }

    /// The first path that differs.
    pub(crate) fn first_difference(&self, other: &Self) -> Option<PathBuf> {
        let changed = self
            .entries
            .iter()
            .find(|(path, fingerprint)| other.entries.get(*path) != Some(fingerprint));
        let added = other
            .entries
            .keys()
            .find(|path| !self.entries.contains_key(*path));
        changed.map(|(path, _)| path).or(added).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_change_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("inside");
        fs::create_dir(&inside).unwrap();
        let file = inside.join("file");
        fs::write(&file, "one").unwrap();
        let look = || Snapshot::of(std::slice::from_ref(&inside), folder.path()).unwrap();
        let before = look();
        assert_eq!(before.first_difference(&look()), None);

        fs::write(&file, "two").unwrap();
        assert_eq!(before.first_difference(&look()), Some(file.clone()));
        fs::write(&file, "one").unwrap();
        let link = folder.path().join("link");
        fs::hard_link(&file, &link).unwrap();
        assert_eq!(before.first_difference(&look()), Some(file.clone()));
        fs::remove_file(&link).unwrap();
        fs::write(folder.path().join("new"), "").unwrap();
        assert_eq!(
            before.first_difference(&look()),
            Some(folder.path().join("new"))
        );
        fs::remove_file(folder.path().join("new")).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(before.first_difference(&look()), Some(file));
    }
}
