//! Files by their names, in a folder or in a tar archive; links are none.
//!
//! A name is a few plain parts; each is opened below the one before it, so
//! that no name and no link leads elsewhere. Never writes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Seek as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use fluffy_tar::{Kind, ReadTarError, read_entry};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

use super::ReadLocalError;

/// The most entries of an archive.
const MOST_ENTRIES: usize = 10_000;

/// The longest name in an archive that is remembered.
const LONGEST_NAME: usize = 255;

/// Files by their names.
#[derive(Debug)]
pub(super) struct Files {
    path: PathBuf,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Folder(OwnedFd),
    Archive {
        file: File,
        /// Where each file begins, and how long it is.
        entries: HashMap<String, (u64, u64)>,
    },
}

/// A part of a file.
struct Part {
    file: File,
    at: u64,
    left: u64,
}

impl Files {
    pub(super) fn folder(path: &Path) -> Result<Self, ReadLocalError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder =
            openat(CWD, path, flags, Mode::empty()).map_err(|error| unread(path, error))?;
        Ok(Self {
            path: path.to_owned(),
            place: Place::Folder(folder),
        })
    }

    pub(super) fn archive(path: &Path) -> Result<Self, ReadLocalError> {
        let form = |why| ReadLocalError::Form {
            path: path.to_owned(),
            why,
        };
        let file = open_file(CWD, path, OFlags::empty()).map_err(|error| unread(path, error))?;
        let file = file.ok_or_else(|| form("it is no file"))?;
        let entries = index(&file).map_err(|error| match error {
            ReadTarError::Broken { what } => form(what),
            ReadTarError::Read(source) => unread(path, source),
        })?;
        Ok(Self {
            path: path.to_owned(),
            place: Place::Archive { file, entries },
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The size of a file; none if there is no such file.
    pub(super) fn size(&self, name: &str) -> Result<Option<u64>, ReadLocalError> {
        Ok(self.open(name)?.map(|part| part.left))
    }

    /// A whole file, which may have `most` bytes.
    pub(super) fn read(&self, name: &str, most: u64) -> Result<Vec<u8>, ReadLocalError> {
        let mut part = self.open(name)?.ok_or_else(|| self.missing(name))?;
        if part.left > most {
            return Err(ReadLocalError::TooLarge {
                path: self.path.clone(),
                name: shown(name),
                most,
            });
        }
        let mut bytes = Vec::new();
        let read = part.read_to_end(&mut bytes);
        read.map_err(|error| unread(&self.path, error))?;
        Ok(bytes)
    }

    /// The bytes of a file as they are read.
    pub(super) fn stream(&self, name: &str) -> Result<Box<dyn Read>, ReadLocalError> {
        let part = self.open(name)?.ok_or_else(|| self.missing(name))?;
        Ok(Box::new(part))
    }

    /// The first four bytes of a file, or fewer.
    pub(super) fn begins(&self, name: &str) -> Result<Vec<u8>, ReadLocalError> {
        let part = self.open(name)?.ok_or_else(|| self.missing(name))?;
        let mut bytes = Vec::new();
        let read = part.take(4).read_to_end(&mut bytes);
        read.map_err(|error| unread(&self.path, error))?;
        Ok(bytes)
    }

    pub(super) fn form(&self, why: &'static str) -> ReadLocalError {
        ReadLocalError::Form {
            path: self.path.clone(),
            why,
        }
    }

    pub(super) fn missing(&self, name: &str) -> ReadLocalError {
        ReadLocalError::Missing {
            path: self.path.clone(),
            name: shown(name),
        }
    }

    fn open(&self, name: &str) -> Result<Option<Part>, ReadLocalError> {
        let unread = |error: io::Error| unread(&self.path, error);
        match &self.place {
            Place::Folder(folder) => {
                let file = open_below(folder, name).map_err(|error| unread(error.into()))?;
                file.map(|file| {
                    let left = file.metadata().map_err(unread)?.len();
                    Ok(Part { file, at: 0, left })
                })
                .transpose()
            }
            Place::Archive { file, entries } => {
                let entry = entries.get(name).copied();
                entry
                    .map(|(at, left)| {
                        let file = file.try_clone().map_err(unread)?;
                        Ok(Part { file, at, left })
                    })
                    .transpose()
            }
        }
    }
}

impl Read for Part {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let most = most.min(buffer.len());
        let count = self
            .file
            .read_at(buffer.get_mut(..most).unwrap_or_default(), self.at)?;
        let moved = u64::try_from(count).unwrap_or(u64::MAX);
        self.at = self.at.saturating_add(moved);
        self.left = self.left.saturating_sub(moved);
        Ok(count)
    }
}

/// Whether bytes begin as gzip or Zstandard does.
pub(super) fn is_compressed(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b]) || bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
}

/// Where the files of an archive are.
fn index(file: &File) -> Result<HashMap<String, (u64, u64)>, ReadTarError> {
    let whole = file.metadata().map_err(ReadTarError::Read)?.len();
    let mut stream = BufReader::new(file);
    let mut entries = HashMap::new();
    let broken = |what| ReadTarError::Broken { what };
    if is_compressed(stream.fill_buf()?) {
        return Err(broken("it is compressed; unpack it first"));
    }
    while let Some(entry) = read_entry(&mut stream)? {
        if entries.len() >= MOST_ENTRIES {
            return Err(broken("it has too many files"));
        }
        if entry.size > 0 && entry.kind != Kind::File {
            return Err(broken("something has content and is no file"));
        }
        let (at, size) = (stream.stream_position()?, entry.size);
        if size > whole.saturating_sub(at) {
            return Err(broken("it ends too early"));
        }
        let skip = i64::try_from(size + entry.padding());
        let name = String::from_utf8(entry.name).ok();
        let name = name.filter(|name| name.len() <= LONGEST_NAME);
        // What has no plain name is never asked for, but counts.
        let name = name.unwrap_or_else(|| format!("\0{}", entries.len()));
        let name = name.strip_prefix("./").unwrap_or(&name).to_owned();
        if entries.insert(name, (entry.kind, at, size)).is_some() {
            return Err(broken("it has two files of one name"));
        }
        // Within what is read already, if it can be.
        stream.seek_relative(skip.map_err(|_| broken("it ends too early"))?)?;
    }
    let files = entries
        .into_iter()
        .filter(|(_, (kind, ..))| *kind == Kind::File);
    Ok(files
        .map(|(name, (_, at, size))| (name, (at, size)))
        .collect())
}

/// Opens a file below a folder, part by part; none if there is none.
fn open_below(folder: &OwnedFd, name: &str) -> Result<Option<File>, Errno> {
    let mut parts: Vec<&str> = name.split('/').collect();
    if parts.iter().any(|part| matches!(*part, "" | "." | "..")) {
        return Ok(None);
    }
    let last = parts.pop().unwrap_or_default();
    let mut current: Option<OwnedFd> = None;
    for part in parts {
        let from = current.as_ref().unwrap_or(folder);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(from, part, flags, Mode::empty()) {
            Ok(next) => current = Some(next),
            Err(error) if is_absent(error) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    match open_file(
        current.as_ref().unwrap_or(folder),
        Path::new(last),
        OFlags::NOFOLLOW,
    ) {
        Err(error) if is_absent(error) => Ok(None),
        opened => opened,
    }
}

/// Opens a file; none if it is something else. A pipe is not waited for.
fn open_file(folder: impl AsFd, path: &Path, more: OFlags) -> Result<Option<File>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | more;
    let file = openat(folder, path, flags, Mode::empty())?;
    let kind = FileType::from_raw_mode(fstat(&file)?.st_mode);
    Ok((kind == FileType::RegularFile).then(|| File::from(file)))
}

/// Whether there is nothing, or a link, which is nothing either.
fn is_absent(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::LOOP | Errno::NOTDIR)
}

fn unread(path: &Path, source: impl Into<io::Error>) -> ReadLocalError {
    ReadLocalError::File {
        path: path.to_owned(),
        source: source.into(),
    }
}

fn shown(name: &str) -> String {
    let plain = name.chars().filter(|c| !c.is_control());
    plain.take(100).collect()
}
