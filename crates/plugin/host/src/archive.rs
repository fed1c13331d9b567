//! Unpacks a plugin that came as one file, into an empty folder of ours.
//!
//! `.tar.gz` and `.zip`, told apart by what is in them. An archive is its
//! author's: names, links, sizes and numbers are all bounded and checked
//! before anything is written, what no plugin may bring is refused by name,
//! and a refused one leaves nothing once its folder is dropped. Next: `tar` and
//! `zip` read the formats, `tree` looks at the folder again.

mod tar;
mod zip;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::tree::stays_inside;

/// The largest archive.
const MAX_ARCHIVE: u64 = 512 << 20;

/// The most files, directories and links; its own tests need no more.
const MAX_ENTRIES: usize = if cfg!(test) { 500 } else { 50_000 };

/// The most bytes of all files together.
const MAX_BYTES: u64 = 1 << 30;

/// The longest path, in bytes.
const MAX_PATH: usize = 1_024;

/// The deepest file.
const MAX_DEPTH: usize = 64;

/// How many times its own size an archive may have, once it is not small.
const MAX_RATIO: u64 = 200;
const SMALL: u64 = 16 << 20;

/// Why an archive is no plugin's.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// It is of no kind that is known.
    #[error("it is neither a `.tar.gz` nor a `.zip`")]
    Unknown,
    /// It is cut off, or its parts contradict each other.
    #[error("it is broken: {what}")]
    Broken {
        /// What is wrong.
        what: &'static str,
    },
    /// What no plugin may bring.
    #[error("`{name}` {what}")]
    Refused {
        /// Which entry, as far as it can be shown.
        name: String,
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
    /// It cannot be read, or its files cannot be written.
    #[error("it cannot be unpacked")]
    File(#[source] io::Error),
}

impl From<io::Error> for UnpackError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Broken {
                what: "it ends too early",
            },
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => Self::Broken {
                what: "what is compressed cannot be read",
            },
            _ => Self::File(error),
        }
    }
}

/// Unpacks an archive into an empty folder; where the plugin is in it.
///
/// # Errors
/// It is no archive, broken, or holds what no plugin may bring.
pub fn unpack(archive: &Path, into: &Path) -> Result<PathBuf, UnpackError> {
    let mut file = File::open(archive)?;
    let size = file.metadata()?.len();
    if size > MAX_ARCHIVE {
        return Err(UnpackError::TooMuch {
            most: MAX_ARCHIVE,
            what: "bytes",
        });
    }
    let mut magic = [0; 4];
    file.read_exact(&mut magic)
        .map_err(|_| UnpackError::Unknown)?;
    let mut folder = Folder {
        into,
        size,
        kinds: HashMap::new(),
        bytes: 0,
    };
    match magic {
        [0x1f, 0x8b, ..] => tar::unpack(file, &mut folder)?,
        [b'P', b'K', 3, 4] => zip::unpack(&mut file, size, &mut folder)?,
        _ => return Err(UnpackError::Unknown),
    }
    Ok(folder.top())
}

/// What is unpacked, and what is known about it.
struct Folder<'a> {
    into: &'a Path,
    /// Of the archive.
    size: u64,
    /// By their paths as a file system without upper case has them.
    kinds: HashMap<String, (String, Kind)>,
    bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
    Link,
}

/// What an archive says about one entry.
struct Entry<'a> {
    name: &'a [u8],
    /// The permissions, as far as it has any.
    mode: u32,
    what: What<'a>,
}

enum What<'a> {
    Directory,
    File(&'a mut dyn Read, u64),
    Link(&'a [u8]),
    /// What no plugin may bring, in words.
    Other(&'static str),
}

impl Folder<'_> {
    /// Takes one entry, or says why not.
    fn take(&mut self, entry: Entry<'_>) -> Result<(), UnpackError> {
        let refused = |what| refused(entry.name, what);
        let path = plain(entry.name).map_err(refused)?;
        if entry.mode & 0o6000 != 0 {
            return Err(refused("would run as another user"));
        }
        match entry.what {
            // `./` itself.
            What::Directory if path.is_empty() => Ok(()),
            _ if path.is_empty() => Err(refused("has no name")),
            What::Directory => self.note(&path, Kind::Directory).map(drop),
            What::File(content, size) => {
                self.note(&path, Kind::File)?;
                self.write(&path, entry.mode, content, size)
            }
            What::Link(target) => {
                let target = std::str::from_utf8(target).ok();
                let target = target
                    .filter(|target| target.len() <= MAX_PATH && stays_inside(&path, target))
                    .ok_or_else(|| refused("is a link that leads out of the plugin"))?;
                self.note(&path, Kind::Link)?;
                Ok(symlink(target, self.into.join(&path))?)
            }
            What::Other(what) => Err(refused(what)),
        }
    }

    /// Notes an entry and the directories above it, each of which is made.
    fn note(&mut self, path: &str, kind: Kind) -> Result<(), UnpackError> {
        let refused = |what| refused(path.as_bytes(), what);
        for (end, _) in path.match_indices('/') {
            let above = path.get(..end).unwrap_or_default();
            match self.known(above)? {
                Some(Kind::Directory) => {}
                Some(_) => return Err(refused("is below what is no directory")),
                None => self.add(above, Kind::Directory)?,
            }
        }
        match (self.known(path)?, kind) {
            (None, _) => self.add(path, kind),
            (Some(Kind::Directory), Kind::Directory) => Ok(()),
            (Some(_), _) => Err(refused("is in it twice")),
        }
    }

    /// What is there under this name; one that differs only in case is refused.
    fn known(&self, path: &str) -> Result<Option<Kind>, UnpackError> {
        match self.kinds.get(&path.to_lowercase()) {
            None => Ok(None),
            Some((same, kind)) if same == path => Ok(Some(*kind)),
            Some(_) => Err(refused(
                path.as_bytes(),
                "differs from another name only in upper and lower case",
            )),
        }
    }

    fn add(&mut self, path: &str, kind: Kind) -> Result<(), UnpackError> {
        if self.kinds.len() >= MAX_ENTRIES {
            return Err(UnpackError::TooMuch {
                most: MAX_ENTRIES.try_into().unwrap_or(u64::MAX),
                what: "files",
            });
        }
        if kind == Kind::Directory {
            let mut builder = std::fs::DirBuilder::new();
            builder.mode(0o700).create(self.into.join(path))?;
        }
        let entry = (path.to_owned(), kind);
        self.kinds.insert(path.to_lowercase(), entry);
        Ok(())
    }

    fn write(
        &mut self,
        path: &str,
        mode: u32,
        content: &mut dyn Read,
        size: u64,
    ) -> Result<(), UnpackError> {
        let mode = match mode & 0o111 {
            0 => 0o644,
            _ => 0o755,
        };
        let mut options = File::options();
        let options = options.write(true).create_new(true).mode(mode);
        let mut file = options.open(self.into.join(path))?;
        let mut buffer = vec![0; 64 << 10];
        let mut written = 0_u64;
        loop {
            let count = content.read(&mut buffer)?;
            let Some(piece) = buffer.get(..count).filter(|piece| !piece.is_empty()) else {
                break;
            };
            let count = u64::try_from(count).unwrap_or(u64::MAX);
            written = written.saturating_add(count);
            self.count(count)?;
            if written > size {
                return Err(refused(path.as_bytes(), "is larger than the archive says"));
            }
            file.write_all(piece)?;
        }
        match written == size {
            true => Ok(()),
            false => Err(UnpackError::Broken {
                what: "it ends too early",
            }),
        }
    }

    /// Counts bytes that came out; a bomb is noticed while it goes off.
    fn count(&mut self, bytes: u64) -> Result<(), UnpackError> {
        self.bytes = self.bytes.saturating_add(bytes);
        let too_much = |most, what| Err(UnpackError::TooMuch { most, what });
        if self.bytes > MAX_BYTES {
            return too_much(MAX_BYTES, "bytes");
        }
        if self.bytes > SMALL && self.bytes / MAX_RATIO > self.size {
            return too_much(MAX_RATIO, "times its own size in it");
        }
        Ok(())
    }

    /// The folder itself, or the only one in it.
    fn top(&self) -> PathBuf {
        let mut tops = self.kinds.values().filter(|(path, _)| !path.contains('/'));
        match (tops.next(), tops.next()) {
            (Some((only, Kind::Directory)), None) => self.into.join(only),
            _ => self.into.to_owned(),
        }
    }
}

/// A relative path of plain names, or why it is none.
fn plain(name: &[u8]) -> Result<String, &'static str> {
    if name.len() > MAX_PATH {
        return Err("has a name that is too long");
    }
    let text = std::str::from_utf8(name).map_err(|_| "has a name that is no text")?;
    if text.contains(|c: char| c.is_control() || c == '\\') {
        return Err("has a name with a character that is no letter anywhere");
    }
    if text.starts_with('/') {
        return Err("leads out of the plugin");
    }
    let text = text.strip_suffix('/').unwrap_or(text);
    let mut names = Vec::new();
    for (place, name) in text.split('/').enumerate() {
        match name {
            // As `tar c .` writes them.
            "." if place == 0 => {}
            ".." => return Err("leads out of the plugin"),
            "" | "." if text.is_empty() => {}
            "" | "." => return Err("has a name with an empty part"),
            name if name.len() > 255 => return Err("has a name that is too long"),
            name => names.push(name),
        }
    }
    if names.len() > MAX_DEPTH {
        return Err("is too deep");
    }
    Ok(names.join("/"))
}

fn refused(name: &[u8], what: &'static str) -> UnpackError {
    let name = String::from_utf8_lossy(name);
    UnpackError::Refused {
        name: name.chars().take(200).collect(),
        what,
    }
}

#[cfg(test)]
mod tests;
