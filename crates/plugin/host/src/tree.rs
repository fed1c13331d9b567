//! The files of a plugin: read once, hashed and copied from the same bytes.
//!
//! Never follows a link, never opens what could block, and bounds everything,
//! because a plugin's directory is its author's. What is hashed is what is
//! copied: nothing can change in between.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};

use fluffy_base::Digest;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, readlinkat, statat};

/// The most files, directories and links.
const MAX_ENTRIES: usize = 50_000;

/// The most bytes of all files together.
const MAX_BYTES: u64 = 1 << 30;

/// The deepest directory.
const MAX_DEPTH: usize = 64;

/// One file or link of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Where, below the plugin's directory, with `/` between names.
    pub path: String,
    /// What it is.
    pub kind: EntryKind,
    /// Of its bytes, or of where it leads.
    pub digest: Digest,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    /// A file.
    File,
    /// A file that can be run.
    Program,
    /// A link inside the directory.
    Link,
}

/// Why a directory cannot be a plugin's.
#[derive(Debug, thiserror::Error)]
pub enum TakeTreeError {
    /// A file cannot be read or written.
    #[error("`{path}` cannot be read or copied")]
    File {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What no plugin may bring.
    #[error("`{path}` {what}")]
    Refused {
        /// Which.
        path: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Too much of it.
    #[error("it has more than {most} {what}")]
    TooMuch {
        /// How much is allowed.
        most: u64,
        /// Of what.
        what: &'static str,
    },
}

/// What is in a directory, in order; copied to a place that is given.
///
/// # Errors
/// Something in it cannot be read, or no plugin may bring it.
pub fn take(source: &Path, copy_to: Option<&Path>) -> Result<Vec<Entry>, TakeTreeError> {
    let file = |source: io::Error| TakeTreeError::File {
        path: ".".to_owned(),
        source,
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(source, flags, Mode::empty());
    let folder = folder.map_err(|error| file(error.into()))?;
    let mut walk = Walk {
        entries: Vec::new(),
        seen: 0,
        bytes: 0,
    };
    walk.folder(&folder, "", copy_to)?;
    walk.entries.sort_unstable();
    Ok(walk.entries)
}

struct Walk {
    entries: Vec<Entry>,
    seen: usize,
    bytes: u64,
}

impl Walk {
    fn folder(
        &mut self,
        folder: &OwnedFd,
        below: &str,
        copy_to: Option<&Path>,
    ) -> Result<(), TakeTreeError> {
        let fails = |error: rustix::io::Errno| TakeTreeError::File {
            path: below.to_owned(),
            source: error.into(),
        };
        if let Some(place) = copy_to {
            make_folder(&place.join(below), below)?;
        }
        if below.split('/').count() > MAX_DEPTH {
            return Err(TakeTreeError::TooMuch {
                most: MAX_DEPTH.try_into().unwrap_or(u64::MAX),
                what: "directories in each other",
            });
        }
        for entry in Dir::read_from(folder).map_err(fails)? {
            let entry = entry.map_err(fails)?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let refused = |what| TakeTreeError::Refused {
                path: format!("{below}/{}", name.to_string_lossy()),
                what,
            };
            let text = name
                .to_str()
                .map_err(|_| refused("has a name that is no text"))?;
            if text.chars().any(char::is_control) {
                return Err(refused("has a control character in its name"));
            }
            let path = match below {
                "" => text.to_owned(),
                below => format!("{below}/{text}"),
            };
            self.count_entry()?;
            self.entry(folder, &path, text, copy_to)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        folder: &OwnedFd,
        path: &str,
        name: &str,
        copy_to: Option<&Path>,
    ) -> Result<(), TakeTreeError> {
        let fails = |source: io::Error| TakeTreeError::File {
            path: path.to_owned(),
            source,
        };
        let refused = |what| TakeTreeError::Refused {
            path: path.to_owned(),
            what,
        };
        let found = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
        let found = found.map_err(|error| fails(error.into()))?;
        let open = |flags: OFlags| {
            let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(folder, name, flags, Mode::empty()).map_err(|error| fails(error.into()))
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => self.folder(&open(OFlags::DIRECTORY)?, path, copy_to),
            FileType::Symlink => {
                let target = readlinkat(folder, name, Vec::new());
                let target = target.map_err(|error| fails(error.into()))?;
                let target = target
                    .to_str()
                    .ok()
                    .filter(|target| stays_inside(path, target))
                    .ok_or_else(|| refused("is a link that leads out of the plugin"))?;
                if let Some(place) = copy_to {
                    symlink(target, place.join(path)).map_err(fails)?;
                }
                self.push(path, EntryKind::Link, Digest::of(target.as_bytes()));
                Ok(())
            }
            FileType::RegularFile => {
                let file = open(OFlags::NONBLOCK)?;
                // It may have become something else since.
                let opened = rustix::fs::fstat(file.as_fd());
                let opened = opened.map_err(|error| fails(error.into()))?;
                if FileType::from_raw_mode(opened.st_mode) != FileType::RegularFile {
                    return Err(refused("is no plain file"));
                }
                let kind = match opened.st_mode & 0o111 {
                    0 => EntryKind::File,
                    _ => EntryKind::Program,
                };
                let copy = match copy_to {
                    Some(place) => Some(create(&place.join(path), kind).map_err(fails)?),
                    None => None,
                };
                let digest = self.content(File::from(file), copy, path)?;
                self.push(path, kind, digest);
                Ok(())
            }
            _ => Err(refused("is neither a file, a directory nor a link")),
        }
    }

    fn content(
        &mut self,
        mut file: File,
        mut copy: Option<File>,
        path: &str,
    ) -> Result<Digest, TakeTreeError> {
        let fails = |source: io::Error| TakeTreeError::File {
            path: path.to_owned(),
            source,
        };
        let mut hasher = fluffy_base::Hasher::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = file.read(&mut buffer).map_err(fails)?;
            let Some(piece) = buffer.get(..count).filter(|piece| !piece.is_empty()) else {
                break;
            };
            self.bytes = self
                .bytes
                .saturating_add(piece.len().try_into().unwrap_or(u64::MAX));
            if self.bytes > MAX_BYTES {
                return Err(TakeTreeError::TooMuch {
                    most: MAX_BYTES,
                    what: "bytes",
                });
            }
            hasher.update(piece);
            if let Some(copy) = &mut copy {
                copy.write_all(piece).map_err(fails)?;
            }
        }
        Ok(hasher.finish())
    }

    fn push(&mut self, path: &str, kind: EntryKind, digest: Digest) {
        self.entries.push(Entry {
            path: path.to_owned(),
            kind,
            digest,
        });
    }

    fn count_entry(&mut self) -> Result<(), TakeTreeError> {
        self.seen += 1;
        match self.seen > MAX_ENTRIES {
            true => Err(TakeTreeError::TooMuch {
                most: MAX_ENTRIES.try_into().unwrap_or(u64::MAX),
                what: "files",
            }),
            false => Ok(()),
        }
    }
}

/// Whether a link at this path leads to somewhere below the top. It goes up
/// only at its beginning: what stands before a later `..` may be a link itself.
pub(crate) fn stays_inside(path: &str, target: &str) -> bool {
    let mut depth = path.split('/').count() - 1;
    let mut goes_up = true;
    for part in Path::new(target).components() {
        match part {
            Component::Normal(_) => goes_up = false,
            Component::CurDir => {}
            Component::ParentDir => match depth.checked_sub(1) {
                Some(up) if goes_up => depth = up,
                _ => return false,
            },
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    true
}

fn make_folder(place: &PathBuf, path: &str) -> Result<(), TakeTreeError> {
    std::fs::create_dir_all(place).map_err(|source| TakeTreeError::File {
        path: path.to_owned(),
        source,
    })
}

fn create(place: &Path, kind: EntryKind) -> io::Result<File> {
    let mode = match kind {
        EntryKind::Program => 0o755,
        EntryKind::File | EntryKind::Link => 0o644,
    };
    let mut options = File::options();
    options.write(true).create_new(true).mode(mode).open(place)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let below = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(below("a/bin")).unwrap();
        std::fs::write(below("plugin.yaml"), "name: x").unwrap();
        std::fs::write(below("a/run"), "#!/bin/sh").unwrap();
        let mode = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(below("a/run"), mode).unwrap();
        symlink("../run", below("a/bin/run")).unwrap();
        folder
    }

    #[test]
    fn what_is_copied_is_what_was_hashed() {
        let (folder, place) = (folder(), tempfile::tempdir().unwrap());
        let copy = place.path().join("copy");
        let entries = take(folder.path(), Some(&copy)).unwrap();
        let shown: Vec<_> = entries
            .iter()
            .map(|one| (one.path.as_str(), one.kind))
            .collect();
        assert_eq!(
            shown,
            [
                ("a/bin/run", EntryKind::Link),
                ("a/run", EntryKind::Program),
                ("plugin.yaml", EntryKind::File)
            ]
        );
        assert_eq!(take(&copy, None).unwrap(), entries);
        let mode = std::fs::metadata(copy.join("a/run")).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o755);
        std::fs::write(copy.join("plugin.yaml"), "name: y").unwrap();
        assert_ne!(take(&copy, None).unwrap(), entries);
    }

    #[test]
    fn links_that_lead_out_and_special_files_are_refused() {
        for target in [
            "/etc/passwd",
            "../../..",
            "../../plugin.yaml/../../x",
            "bin/../../x",
        ] {
            let folder = folder();
            symlink(target, folder.path().join("a/out")).unwrap();
            let error = take(folder.path(), None).unwrap_err().to_string();
            assert_eq!(
                error, "`a/out` is a link that leads out of the plugin",
                "{target}"
            );
        }
        let folder = folder();
        let place = folder.path().join("pipe");
        let kind = FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &place, kind, Mode::RUSR, 0).unwrap();
        let error = take(folder.path(), None).unwrap_err().to_string();
        assert_eq!(error, "`pipe` is neither a file, a directory nor a link");
        std::fs::remove_file(&place).unwrap();
        std::fs::write(folder.path().join("a\nb"), "").unwrap();
        assert!(take(folder.path(), None).is_err());
    }
}
