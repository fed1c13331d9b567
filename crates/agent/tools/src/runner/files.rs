//! The few things the runner does to files, each beneath one root.
//!
//! Every path is resolved from the root's descriptor without following a link;
//! a name is only ever used in a directory that was opened that way.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use fluffy_layer::TreePath;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, fchmod, fstat, mkdirat,
    openat, openat2, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

/// The largest file that is changed.
pub(super) const MAX_FILE: u64 = 16 << 20;

/// What a new file's permissions are.
pub(super) const NEW_MODE: u32 = 0o644;

/// How often a lookup is repeated when a rename elsewhere disturbed it.
const RETRIES: usize = 32;

/// The project.
pub(super) struct Root(OwnedFd);

/// A regular file as it was read.
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    pub(super) mode: u32,
    identity: Identity,
}

/// A file that takes its place by rename, and goes if it does not.
struct Temporary<'a> {
    directory: OwnedFd,
    name: String,
    path: &'a TreePath,
    is_placed: bool,
}

/// Which file it is and when it last changed.
#[derive(PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    changed: (i64, u64),
}

/// What has a name.
pub(super) enum Seen {
    Nothing,
    File,
    Link,
    Directory,
    Special,
}

impl Root {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(openat(CWD, path, flags, Mode::empty())?))
    }

    /// What is at a path. A link on the way there is an error.
    pub(super) fn look(&self, path: &TreePath) -> io::Result<Seen> {
        let directory = match self.directory(path.parent().as_ref()) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(Seen::Nothing),
            Err(error) => return Err(error.into()),
        };
        match statat(&directory, path.name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Seen::File,
                FileType::Symlink => Seen::Link,
                FileType::Directory => Seen::Directory,
                _ => Seen::Special,
            }),
            Err(Errno::NOENT) => Ok(Seen::Nothing),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a regular file.
    pub(super) fn read(&self, path: &TreePath) -> io::Result<Content> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(self.resolve(Some(path), flags)?);
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_FILE {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "too large to be changed",
            ));
        }
        Ok(Content {
            bytes,
            mode: stat.st_mode & 0o777,
            identity: Identity::of(&stat),
        })
    }

    /// Puts a file in the place of the one that was read, or of nothing.
    pub(super) fn write(
        &self,
        path: &TreePath,
        bytes: &[u8],
        replaced: Option<&Content>,
        mode: u32,
    ) -> io::Result<()> {
        let made = self.make(path, bytes, mode)?;
        match replaced {
            Some(content) => {
                self.check_unchanged(path, content)?;
                made.rename(RenameFlags::empty())
            }
            None => made.rename(RenameFlags::NOREPLACE),
        }
    }

    /// Puts a file in the place of whatever other file is there.
    pub(super) fn put(&self, path: &TreePath, bytes: &[u8], mode: Option<u32>) -> io::Result<()> {
        let present = match self.look(path)? {
            Seen::File => {
                let directory = self.directory(path.parent().as_ref())?;
                let stat = statat(&directory, path.name(), AtFlags::SYMLINK_NOFOLLOW)?;
                Some(stat.st_mode & 0o777)
            }
            _ => None,
        };
        let mode = mode.or(present).unwrap_or(NEW_MODE);
        self.make(path, bytes, mode)?.rename(RenameFlags::empty())
    }

    /// A filled file beside the path, under a name of its own.
    fn make<'a>(&self, path: &'a TreePath, bytes: &[u8], mode: u32) -> io::Result<Temporary<'a>> {
        let directory = self.make_directories(path.parent().as_ref())?;
        let name = format!(".fluffy-tool-{}.tmp", std::process::id());
        // What a runner that was killed under the same number left behind.
        let _ = unlinkat(&directory, name.as_str(), AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let made = openat(
            &directory,
            name.as_str(),
            flags | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR,
        )?;
        let temporary = Temporary {
            directory,
            name,
            path,
            is_placed: false,
        };
        let mut file = File::from(made);
        file.write_all(bytes)?;
        fchmod(&file, Mode::from_raw_mode(mode))?;
        Ok(temporary)
    }

    /// Removes a name that is no directory; a link goes, not what it points to.
    pub(super) fn remove(&self, path: &TreePath, expected: Option<&Content>) -> io::Result<()> {
        if let Some(content) = expected {
            self.check_unchanged(path, content)?;
        }
        let directory = self.directory(path.parent().as_ref())?;
        Ok(unlinkat(&directory, path.name(), AtFlags::empty())?)
    }

    /// Makes room for a file: removes a link, a special file, an empty directory.
    pub(super) fn clear(&self, path: &TreePath) -> io::Result<()> {
        let how = match self.look(path)? {
            Seen::Nothing | Seen::File => return Ok(()),
            Seen::Link | Seen::Special => AtFlags::empty(),
            Seen::Directory => AtFlags::REMOVEDIR,
        };
        let directory = self.directory(path.parent().as_ref())?;
        Ok(unlinkat(&directory, path.name(), how)?)
    }

    fn check_unchanged(&self, path: &TreePath, content: &Content) -> io::Result<()> {
        let directory = self.directory(path.parent().as_ref())?;
        let stat = statat(&directory, path.name(), AtFlags::SYMLINK_NOFOLLOW)?;
        match Identity::of(&stat) == content.identity {
            true => Ok(()),
            false => Err(io::Error::other("it changed while it was being edited")),
        }
    }

    fn make_directories(&self, path: Option<&TreePath>) -> Result<OwnedFd, Errno> {
        let mut directory = self.directory(None)?;
        for name in path.into_iter().flat_map(TreePath::names) {
            let below = TreePath::parse(name).map_err(|_| Errno::INVAL)?;
            directory = match resolve(&directory, below.as_bytes(), DIRECTORY) {
                Err(Errno::NOENT) => {
                    match mkdirat(&directory, name, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(error),
                    }
                    resolve(&directory, below.as_bytes(), DIRECTORY)?
                }
                other => other?,
            };
        }
        Ok(directory)
    }

    fn directory(&self, path: Option<&TreePath>) -> Result<OwnedFd, Errno> {
        self.resolve(path, DIRECTORY)
    }

    fn resolve(&self, path: Option<&TreePath>, flags: OFlags) -> Result<OwnedFd, Errno> {
        resolve(
            &self.0,
            path.map_or(b".".as_slice(), TreePath::as_bytes),
            flags,
        )
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW);

fn resolve(from: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let guards = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..RETRIES {
        match openat2(from, path, flags | OFlags::CLOEXEC, Mode::empty(), guards) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

impl Temporary<'_> {
    fn rename(mut self, flags: RenameFlags) -> io::Result<()> {
        let (from, to) = (self.name.as_str(), self.path.name());
        renameat_with(&self.directory, from, &self.directory, to, flags)?;
        self.is_placed = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.is_placed {
            let _ = unlinkat(&self.directory, self.name.as_str(), AtFlags::empty());
        }
    }
}

impl Identity {
    fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}
