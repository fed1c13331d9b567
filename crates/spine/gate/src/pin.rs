//! The reviewed copy of a project's policy: the only one that is enforced.
//!
//! Each copy lives in a folder named by its digest; a small file `current`
//! names the one in force. Both appear by rename, so a crash at any point
//! leaves the old policy or the new one, never a mixture. A copy that no longer
//! has its digest is refused, not used.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use fluffy_base::Digest;
use fluffy_policy::Permit;

use crate::bundle::{Bundle, EXTENSIONS_DIR, POLICY_FILE, ReadBundleError, read_text};

const CURRENT: &str = "current";
const FORMAT: &str = "fluffy-pin-1 ";

/// Where the reviewed copies of one project's policy are kept.
#[derive(Debug, Clone)]
pub struct PinStore {
    folder: PathBuf,
}

/// Why the copy in force could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadPinError {
    /// A file could not be read.
    #[error("cannot read the pinned policy in `{}`", folder.display())]
    Read {
        /// Where.
        folder: PathBuf,
        /// Why.
        #[source]
        source: ReadBundleError,
    },
    /// `current` does not name a digest.
    #[error("`{}` does not name a pinned policy", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// The copy is gone or was changed after it was reviewed.
    #[error("the pinned policy `{digest}` in `{}` was changed or is gone", folder.display())]
    Damaged {
        /// Where.
        folder: PathBuf,
        /// What it should have been.
        digest: Digest,
    },
}

/// Why a policy could not be pinned; the one in force is unchanged.
#[derive(Debug, thiserror::Error)]
#[error("cannot write `{}`", path.display())]
pub struct WritePinError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl PinStore {
    /// The store of the project at `root`, in the folder for all projects.
    #[must_use]
    pub fn of_project(pins: &Path, root: &Path) -> Self {
        // The readable part is for people; the digest is what tells projects apart.
        let name: String = root
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or("project")
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || *c == '-' || *c == '_')
            .take(40)
            .collect();
        let key = Digest::of(root.as_os_str().as_encoded_bytes()).to_string();
        let short = key.get(..16).unwrap_or(&key);
        Self {
            folder: pins.join(format!("{name}-{short}")),
        }
    }

    /// The copy in force, or nothing if none was ever applied.
    ///
    /// # Errors
    /// It cannot be read, or is no longer what was reviewed.
    pub fn current(&self) -> Result<Option<Bundle>, ReadPinError> {
        let path = self.folder.join(CURRENT);
        let failed = |source| ReadPinError::Read {
            folder: self.folder.clone(),
            source,
        };
        let Some(text) = read_text(&path).map_err(failed)? else {
            return Ok(None);
        };
        let digest: Digest = text
            .strip_prefix(FORMAT)
            .and_then(|rest| rest.trim_end().parse().ok())
            .ok_or(ReadPinError::Malformed { path })?;
        let damaged = || ReadPinError::Damaged {
            folder: self.folder.clone(),
            digest,
        };
        let bundle = Bundle::read(&self.folder.join(digest.to_string())).map_err(failed)?;
        let bundle = bundle.ok_or_else(damaged)?;
        if bundle.digest() == digest {
            Ok(Some(bundle))
        } else {
            Err(damaged())
        }
    }

    /// The file whose change means that another copy is in force.
    #[must_use]
    pub fn current_file(&self) -> PathBuf {
        self.folder.join(CURRENT)
    }

    /// Puts a bundle in force; the permit is for `policy.update`.
    ///
    /// # Errors
    /// The permit is for something else, or something could not be written;
    /// then nothing has changed.
    pub fn pin(&self, permit: Permit, bundle: &Bundle) -> Result<Digest, WritePinError> {
        if permit.action() != "policy.update" {
            let source = io::Error::from(io::ErrorKind::PermissionDenied);
            return Err(at(&self.folder)(source));
        }
        let digest = bundle.digest();
        make_private_folder(&self.folder)?;
        // One at a time, also between processes; ends with the handle.
        let turn = File::open(&self.folder).map_err(at(&self.folder))?;
        turn.lock().map_err(at(&self.folder))?;
        self.write_copy(bundle, digest)?;
        let text = format!("{FORMAT}{digest}\n");
        let temporary = self
            .folder
            .join(format!(".{CURRENT}-{}", std::process::id()));
        write_durably(&temporary, text.as_bytes())?;
        rename(&temporary, &self.folder.join(CURRENT))?;
        sync_folder(&self.folder)?;
        drop(permit);
        Ok(digest)
    }

    fn write_copy(&self, bundle: &Bundle, digest: Digest) -> Result<(), WritePinError> {
        let copy = self.folder.join(digest.to_string());
        if Bundle::read(&copy)
            .ok()
            .flatten()
            .is_some_and(|present| &present == bundle)
        {
            return Ok(());
        }
        let temporary = self
            .folder
            .join(format!(".{digest}-{}", std::process::id()));
        remove_folder(&temporary)?;
        make_private_folder(&temporary.join(EXTENSIONS_DIR))?;
        write_durably(&temporary.join(POLICY_FILE), bundle.policy.as_bytes())?;
        for (name, source) in &bundle.extensions {
            let file = temporary.join(EXTENSIONS_DIR).join(format!("{name}.ts"));
            write_durably(&file, source.as_bytes())?;
        }
        sync_folder(&temporary.join(EXTENSIONS_DIR))?;
        sync_folder(&temporary)?;
        // Only a damaged copy can stand here: whole ones returned above.
        remove_folder(&copy)?;
        rename(&temporary, &copy)?;
        sync_folder(&self.folder)
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> WritePinError + '_ {
    move |source| WritePinError {
        path: path.to_owned(),
        source,
    }
}

fn make_private_folder(path: &Path) -> Result<(), WritePinError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(at(path))
}

fn remove_folder(path: &Path) -> Result<(), WritePinError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), WritePinError> {
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .map_err(at(path))?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(at(path))
}

fn rename(from: &Path, to: &Path) -> Result<(), WritePinError> {
    fs::rename(from, to).map_err(at(to))
}

fn sync_folder(path: &Path) -> Result<(), WritePinError> {
    File::open(path)
        .and_then(|folder| folder.sync_all())
        .map_err(at(path))
}
