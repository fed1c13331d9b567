//! The scratch disks of instances: what each writes goes to a file of its own
//! on the node's disk, with a file system that nobody has used before.
//!
//! `mke2fs` makes one file of each size that is asked for, behind walls of its
//! own; an instance gets a copy of it, of which only what was ever written
//! takes room. How large all of them may become is kept free for them, whatever
//! they use now. Nothing is remembered: what is promised is what there is.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use fluffy_shim::format::{NOBODY, mke2fs};
use rustix::fs::SeekFrom;
use tokio::process::Command;
use tokio::sync::Mutex;

use super::Unavailable;
use crate::home::private;

/// Its name in the folder of an instance.
const NAME: &str = "scratch.img";

/// What a template is called; another way of making them has another name.
const TEMPLATE: &str = "ext4-1";

/// The most sizes that are kept.
const SIZES: usize = 32;

/// What stays free of the node's disk for everybody else: so much at least, or
/// one part in so many.
const KEPT_FREE: u64 = 1 << 30;
const KEPT_PART: u64 = 20;

/// How large the file is that is made to see whether one can be.
const TRIED: u64 = 64 << 20;

/// How long making a file system may take.
const FORMAT: Duration = Duration::from_secs(30);

/// The most that is heard of why it failed.
const WHY: usize = 500;

/// Why an instance has no scratch disk.
#[derive(Debug, thiserror::Error)]
pub enum ScratchError {
    /// There is no room for it.
    #[error(
        "its scratch disk may take {} MiB, and {} MiB of the node's disk are neither used nor \
         promised to others",
        bytes >> 20,
        free >> 20
    )]
    Full {
        /// How large it may become.
        bytes: u64,
        /// What there is for it.
        free: u64,
    },
    /// A file cannot be made.
    #[error("`{}` cannot be made", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file system cannot be made.
    #[error("a file system cannot be made: {why}")]
    Format {
        /// What it said.
        why: String,
    },
}

impl ScratchError {
    /// The reason of the report.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Full { .. } => "disk_full",
            Self::File { source, .. } if is_full(source) => "disk_full",
            Self::File { .. } | Self::Format { .. } => "rootfs_build_failed",
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Makes scratch disks.
#[derive(Debug)]
pub struct Scratch {
    /// Where templates are.
    folder: PathBuf,
    /// What becomes `mke2fs`.
    program: PathBuf,
    arguments: Vec<String>,
    /// One at a time counts what is free and takes of it.
    one: Mutex<()>,
    /// What was found when it was tried last.
    tried: Mutex<Option<Result<(), Unavailable>>>,
}

impl Scratch {
    /// Disks of which the templates are in this folder, and are made by this
    /// program with these arguments.
    #[must_use]
    pub fn new(folder: PathBuf, program: PathBuf, arguments: Vec<String>) -> Self {
        Self {
            folder,
            program,
            arguments,
            one: Mutex::new(()),
            tried: Mutex::new(None),
        }
    }

    /// Whether this machine can have them, found out by doing it; nothing is
    /// left of that.
    ///
    /// # Errors
    /// What is missing, and what helps.
    pub async fn probe(&self) -> Result<(), Unavailable> {
        let mut tried = self.tried.lock().await;
        // What works goes on to; what did not may have been put right.
        if !matches!(*tried, Some(Ok(()))) {
            *tried = Some(self.attempt().await);
        }
        tried.clone().unwrap_or(Ok(()))
    }

    /// As [`Scratch::probe`] found it last, so that a node does not change its
    /// mind between what it said and what it does.
    pub(super) async fn is_usable(&self) -> bool {
        let known = self.tried.lock().await.clone();
        match known {
            Some(known) => known.is_ok(),
            None => self.probe().await.is_ok(),
        }
    }

    async fn attempt(&self) -> Result<(), Unavailable> {
        let cannot = |reason: String, fix: &str| Unavailable {
            reason,
            fix: fix.to_owned(),
        };
        if mke2fs().is_none() {
            let reason = "there is no `mke2fs` on this machine".to_owned();
            return Err(cannot(reason, "install e2fsprogs"));
        }
        let above = self.folder.parent().filter(|folder| folder.is_dir());
        let place = above.map_or_else(std::env::temp_dir, Path::to_owned);
        let made = self.nameless(&place, TRIED).await;
        let file = match made {
            Ok(file) => file,
            // There is one as soon as there is room; until then that is said.
            Err(error) if error.code() == "disk_full" => return Ok(()),
            Err(error) => {
                let fix = "see that `mke2fs` of e2fsprogs runs, and that the node's folder is \
                           on a file system of this machine";
                return Err(cannot(chain(&error), fix));
            }
        };
        let mounted = tokio::task::spawn_blocking(move || fluffy_shim::probe_disk(&file)).await;
        mounted
            .unwrap_or_else(|error| Err((error.to_string(), String::new())))
            .map_err(|(reason, fix)| Unavailable { reason, fix })
    }

    /// A formatted file without a name.
    async fn nameless(&self, folder: &Path, bytes: u64) -> Result<File, ScratchError> {
        let path = folder.join(format!(".scratch-{}", std::process::id()));
        let made = |source| ScratchError::File {
            path: path.clone(),
            source,
        };
        remove(&path).map_err(made)?;
        let file = create(&path).map_err(made)?;
        remove(&path).map_err(made)?;
        self.format(&file, bytes, &path).await?;
        Ok(file)
    }

    /// Makes the disk of an instance in its folder, empty, in the place of one
    /// that it had.
    ///
    /// # Errors
    /// See [`ScratchError`]; nothing is left then.
    pub async fn make(&self, instance: &Path, bytes: u64) -> Result<PathBuf, ScratchError> {
        let path = instance.join(NAME);
        let failed = |source| ScratchError::File {
            path: path.clone(),
            source,
        };
        let _one = self.one.lock().await;
        remove(&path).map_err(failed)?;
        let others = instance.parent().unwrap_or(instance);
        let free = unused(others)
            .map_err(failed)?
            .saturating_sub(promised(others));
        if bytes > free {
            return Err(ScratchError::Full { bytes, free });
        }
        let template = self.template(bytes).await?;
        let (from, to) = (template.clone(), path.clone());
        let copied = tokio::task::spawn_blocking(move || copy(&from, &to, bytes)).await;
        match copied.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => Ok(path),
            Err(source) => {
                let _ = remove(&path);
                Err(ScratchError::File { path, source })
            }
        }
    }

    /// The file of this size that is copied; made if it is the first one.
    async fn template(&self, bytes: u64) -> Result<PathBuf, ScratchError> {
        let path = self.folder.join(format!("{TEMPLATE}-{bytes}"));
        if fs::metadata(&path).is_ok_and(|found| found.len() == bytes) {
            return Ok(path);
        }
        let failed = |source| ScratchError::File {
            path: path.clone(),
            source,
        };
        private(&self.folder).map_err(failed)?;
        self.let_go().map_err(failed)?;
        let new = self.folder.join(format!("{bytes}.new"));
        remove(&new).map_err(failed)?;
        let file = create(&new).map_err(failed)?;
        let made = self.format(&file, bytes, &new).await;
        // Whole or not at all, also when the power goes.
        let made = made.and_then(|()| {
            file.sync_all()
                .and_then(|()| fs::rename(&new, &path))
                .map_err(failed)
        });
        match made {
            Ok(()) => Ok(path),
            Err(error) => {
                let _ = remove(&new);
                Err(error)
            }
        }
    }

    /// Makes room for one more size: the oldest goes.
    fn let_go(&self) -> io::Result<()> {
        let mut all: Vec<(SystemTime, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            all.push((entry.metadata()?.modified()?, entry.path()));
        }
        all.sort();
        let surplus = all.len().saturating_sub(SIZES - 1);
        for (_, path) in all.iter().take(surplus) {
            remove(path)?;
        }
        Ok(())
    }

    /// Has a file system made that fills a new file.
    async fn format(&self, file: &File, bytes: u64, path: &Path) -> Result<(), ScratchError> {
        let failed = |source| ScratchError::File {
            path: path.to_owned(),
            source,
        };
        file.set_len(bytes).map_err(failed)?;
        fchown(file, Some(NOBODY), Some(NOBODY)).map_err(failed)?;
        let input: OwnedFd = file.try_clone().map_err(failed)?.into();
        let ran = Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(input))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .output();
        let ran = match tokio::time::timeout(FORMAT, ran).await {
            Ok(ran) => ran.map_err(failed)?,
            Err(_) => {
                let why = "`mke2fs` took too long".to_owned();
                return Err(ScratchError::Format { why });
            }
        };
        fchown(file, Some(0), Some(0)).map_err(failed)?;
        if ran.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&ran.stderr);
        let said: String = said.trim().chars().filter(|it| !it.is_control()).collect();
        let said: String = said.chars().take(WHY).collect();
        let why = match said.as_str() {
            "" => format!("`mke2fs` ended with {}", ran.status),
            said => said.to_owned(),
        };
        Err(ScratchError::Format { why })
    }
}

/// The disk of an instance in this folder, if it has one: its size, and how
/// much of it takes room.
#[must_use]
pub(crate) fn found(instance: &Path) -> Option<(PathBuf, fs::Metadata)> {
    let path = instance.join(NAME);
    let found = fs::symlink_metadata(&path).ok()?;
    Some((path, found))
}

/// How much room a file takes, in bytes.
pub(crate) fn used(found: &fs::Metadata) -> u64 {
    found.blocks().saturating_mul(512)
}

/// What is free on the disk of this folder, and not kept for others. The kernel
/// writes these files as root does, so what a file system sets aside for root
/// is no more and no less than the rest.
fn unused(folder: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(folder)?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    let kept = KEPT_FREE.max(bytes(disk.f_blocks) / KEPT_PART);
    Ok(bytes(disk.f_bfree).saturating_sub(kept))
}

/// What the disks of the instances in this folder may still take.
fn promised(instances: &Path) -> u64 {
    let entries = fs::read_dir(instances).into_iter().flatten().flatten();
    let disks = entries.filter_map(|entry| found(&entry.path()));
    disks
        .map(|(_, found)| found.len().saturating_sub(used(&found)))
        .fold(0, u64::saturating_add)
}

/// A file of its own, for its owner only.
fn create(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Removes a file, if it is there.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Copies what was written of a file, and leaves the holes.
fn copy(from: &Path, to: &Path, bytes: u64) -> io::Result<()> {
    let (from, to) = (File::open(from)?, create(to)?);
    to.set_len(bytes)?;
    let mut at = 0;
    while at < bytes {
        let begin = match rustix::fs::seek(&from, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            // Only a hole is left.
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&from, SeekFrom::Hole(begin))?.min(bytes);
        let (mut source, mut target) = (begin, begin);
        while source < end {
            let rest = usize::try_from(end - source).unwrap_or(usize::MAX);
            let (read, written) = (Some(&mut source), Some(&mut target));
            if rustix::fs::copy_file_range(&from, read, &to, written, rest)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        at = end;
    }
    Ok(())
}

/// An error and its causes, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
