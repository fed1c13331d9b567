//! A server's own blobs: images of files, kept so that nodes can have them.
//!
//! What is imported is copied and checked by its digest; the file it came from
//! is not needed afterwards. Whoever knows a digest may have the blob: digests
//! cannot be guessed, and a node learns those of what it is to run. What was
//! not asked for the longest time goes when there is too much. Blocks.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::Path;
use std::sync::Arc;

use fluffy_base::{Digest, Hasher};
use fluffy_manifest::ImageSource;

use crate::error::ResolveError;
use crate::local::{Found, find_archive, find_layout};
use crate::store::disk::{Disk, NoRoom};
use crate::survey::{Limits, Resolved};

/// A server's own blobs.
#[derive(Debug)]
pub struct Shelf {
    disk: Arc<Disk>,
}

/// Why an image is not on the shelf.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It is no image that could run.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// A part of it is not what its digest says.
    #[error("`sha256:{digest}` in the image has other content than its {what} says")]
    Content {
        /// Which.
        digest: Digest,
        /// What does not fit: its size or its digest.
        what: &'static str,
    },
    /// There is no room for it.
    #[error("there is no room for the image on the server: {0}")]
    Room(String),
    /// It cannot be kept.
    #[error("the image cannot be kept on the server: {0}")]
    Keep(#[from] io::Error),
}

impl ImportError {
    /// The code of the problem that it is in the platform's interface.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Resolve(error) => error.code(),
            Self::Content { .. } => "image_unresolvable",
            Self::Room(_) | Self::Keep(_) => "unavailable",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn fix(&self) -> &'static str {
        match self {
            Self::Resolve(error) => error.fix(),
            Self::Content { .. } => "write the image anew; its file is damaged",
            Self::Room(_) => "free space on the server, or push the image to a registry",
            Self::Keep(_) => "look at the disk of the server, and try again",
        }
    }
}

impl Shelf {
    /// Opens the shelf in a folder, which holds at most `quota` bytes.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub fn open(folder: &Path, quota: u64) -> io::Result<Self> {
        let disk = Disk::open(folder, quota)?;
        Ok(Self { disk })
    }

    /// Takes in the image of a layout or an archive, whole or not at all.
    ///
    /// # Errors
    /// It is no image that could run, is damaged, or does not fit.
    pub fn import(&self, source: &ImageSource, limits: Limits) -> Result<Resolved, ImportError> {
        let found = match source {
            ImageSource::Layout(path) => find_layout(path, limits)?,
            ImageSource::Archive(path) => find_archive(path, limits)?,
            ImageSource::Registry(_) => {
                return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
            }
        };
        let parts = found.parts()?;
        let bytes = parts.iter().map(|part| part.size);
        let bytes = bytes.fold(0, u64::saturating_add);
        let _promise = self.disk.promise(bytes)?.map_err(full)?;
        // What is taken in now must not go for what follows.
        let _held: Vec<_> = parts.iter().map(|it| self.disk.hold(it.digest)).collect();
        for part in &parts {
            self.take(&found, (part.digest, part.size), &part.name)?;
        }
        Ok(found.resolved)
    }

    /// Opens a blob; none if there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn open_blob(&self, digest: Digest) -> io::Result<Option<File>> {
        let path = self.disk.blob(digest);
        match File::open(&path) {
            Ok(file) => {
                Disk::touch(&path);
                Ok(Some(file))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn take(
        &self,
        found: &Found,
        (digest, size): (Digest, u64),
        name: &str,
    ) -> Result<(), ImportError> {
        let path = self.disk.blob(digest);
        if path.exists() {
            Disk::touch(&path);
            return Ok(());
        }
        let mut work = self.disk.work()?;
        let (mut hasher, mut piece) = (Hasher::new(), vec![0; 1 << 20]);
        let mut came = 0;
        let mut bytes = found.open(name)?;
        loop {
            let read = bytes.read(&mut piece)?;
            let piece = piece.get(..read).unwrap_or_default();
            if piece.is_empty() {
                break;
            }
            came += u64::try_from(read).unwrap_or(u64::MAX);
            if came > size {
                break;
            }
            hasher.update(piece);
            work.file.write_all(piece)?;
        }
        let content = |what| ImportError::Content { digest, what };
        if came != size {
            return Err(content("size"));
        }
        if hasher.finish() != digest {
            return Err(content("digest"));
        }
        work.keep(&path)?;
        Ok(())
    }
}

fn full(error: NoRoom) -> ImportError {
    ImportError::Room(error.to_string())
}
