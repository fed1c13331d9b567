//! Files of the workspace and of a plugin's data, opened without following
//! any link.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use fluffy_policy::Permit;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{MAX_LISTED, MAX_VALUE, Places, ServiceError};

/// Never out of the root, never through a link.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

pub(super) async fn read(
    _permit: Permit,
    places: Places,
    path: String,
) -> Result<Vec<u8>, ServiceError> {
    blocking(move || {
        let (root, below) = place(&places, &path)?;
        let file = plain(&root, &below, OFlags::RDONLY, &path)?;
        let mut content = Vec::new();
        let most = u64::try_from(MAX_VALUE).unwrap_or(u64::MAX);
        let mut some = file.take(most.saturating_add(1));
        some.read_to_end(&mut content)
            .map_err(|error| failed(&error))?;
        match content.len() > MAX_VALUE {
            true => Err(ServiceError::TooLarge {
                what: "the file",
                most: MAX_VALUE,
            }),
            false => Ok(content),
        }
    })
    .await
}

pub(super) async fn list(
    _permit: Permit,
    places: Places,
    path: String,
) -> Result<Vec<String>, ServiceError> {
    blocking(move || {
        let (root, below) = place(&places, &path)?;
        let folder = open(&root, &below, OFlags::RDONLY | OFlags::DIRECTORY, &path)?;
        let mut entries = rustix::fs::Dir::new(folder).map_err(|error| fault(error, &path))?;
        let mut names = Vec::new();
        while let Some(entry) = entries.read() {
            let entry = entry.map_err(|error| fault(error, &path))?;
            // A name that is no text cannot be asked for either.
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if name == "." || name == ".." {
                continue;
            }
            if names.len() == MAX_LISTED {
                let what = format!("the directory has more than {MAX_LISTED} entries");
                return Err(ServiceError::Failed { what });
            }
            names.push(match entry.file_type() {
                FileType::Directory => format!("{name}/"),
                _ => name.to_owned(),
            });
        }
        names.sort_unstable();
        Ok(names)
    })
    .await
}

pub(super) async fn write(
    _permit: Permit,
    places: Places,
    path: String,
    content: Vec<u8>,
) -> Result<(), ServiceError> {
    blocking(move || {
        if !path.starts_with("@data/") {
            return Err(ServiceError::Invalid {
                what: path,
                why: "only `@data/…` is written by a plugin; the project is changed by merges",
            });
        }
        let (root, below) = place(&places, &path)?;
        let mut file = plain(&root, &below, OFlags::WRONLY | OFlags::CREATE, &path)?;
        // Only now that it is known to be a plain file.
        let done = file.set_len(0).and_then(|()| file.write_all(&content));
        done.map_err(|error| failed(&error))
    })
    .await
}

/// The root that a path is below, and the rest of it.
fn place(places: &Places, path: &str) -> Result<(PathBuf, PathBuf), ServiceError> {
    let (root, rest) = match path.strip_prefix("@data") {
        Some(rest) => (&places.data, rest),
        None => (&places.workspace, path),
    };
    let root = root.clone().ok_or_else(|| not_found(path))?;
    let rest = rest.trim_start_matches('/');
    let below = if rest.is_empty() { "." } else { rest };
    Ok((root, PathBuf::from(below)))
}

/// Opens a plain file; anything that could block or act is refused.
fn plain(root: &Path, below: &Path, flags: OFlags, path: &str) -> Result<File, ServiceError> {
    let file = open(root, below, flags | OFlags::NONBLOCK, path)?;
    let found = rustix::fs::fstat(&file).map_err(|error| fault(error, path))?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok(File::from(file)),
        _ => Err(ServiceError::Invalid {
            what: path.to_owned(),
            why: "it is not a plain file",
        }),
    }
}

fn open(root: &Path, below: &Path, flags: OFlags, path: &str) -> Result<OwnedFd, ServiceError> {
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, folder, Mode::empty()).map_err(|error| fault(error, path))?;
    let mode = match flags.contains(OFlags::CREATE) {
        true => Mode::RUSR | Mode::WUSR,
        false => Mode::empty(),
    };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat2(root, below, flags, mode, BENEATH).map_err(|error| fault(error, path))
}

fn fault(error: Errno, path: &str) -> ServiceError {
    let invalid = |why| ServiceError::Invalid {
        what: path.to_owned(),
        why,
    };
    match error {
        Errno::NOENT => not_found(path),
        Errno::XDEV | Errno::LOOP => invalid("it leads through a link"),
        Errno::NOTDIR => invalid("a part of it is not a directory"),
        Errno::NXIO | Errno::ISDIR => invalid("it is not a plain file"),
        error => failed(&error.into()),
    }
}

fn not_found(path: &str) -> ServiceError {
    ServiceError::NotFound {
        what: path.to_owned(),
    }
}

fn failed(error: &std::io::Error) -> ServiceError {
    ServiceError::Failed {
        what: error.to_string(),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ServiceError> + Send + 'static,
) -> Result<T, ServiceError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ServiceError::Failed {
        what: error.to_string(),
    })?
}
