//! A directory tree whose content may be hostile and may change while we look.
//!
//! Every path is resolved by the kernel from the root's descriptor, beneath it,
//! without following any link and without crossing into another mount, so a
//! name swapped for a link is an error, never a way out. Nothing here blocks on
//! a FIFO or reads more than asked for. Writing is in [`crate::write`].

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use fluffy_base::Digest;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fgetxattr, fstat, openat,
    openat2, readlinkat, statat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::path::TreePath;

/// The most names one directory may have before it is refused.
pub(crate) const MAX_NAMES: usize = 1_000_000;

/// How often a lookup is repeated when a rename elsewhere disturbed it.
const RETRIES: usize = 32;

/// The names in a directory with what they are.
pub(crate) type Children = Vec<(Box<[u8]>, Node)>;

/// One directory tree, held by the descriptor of its root.
pub(crate) struct Tree {
    root: OwnedFd,
    shown: PathBuf,
}

/// What kind of thing has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
}

impl NodeKind {
    /// The kind in words, for messages.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symbolic link",
            Self::Fifo => "named pipe",
            Self::Socket => "socket",
            Self::Device => "device",
        }
    }
}

/// Which inode it is and when it last changed: equal means unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    /// Nanoseconds since 1970; no program can set it.
    pub(crate) changed: i64,
}

/// What the kernel says about one name, without following it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) kind: NodeKind,
    /// Permission bits with setuid, setgid and sticky.
    pub(crate) mode: u32,
    pub(crate) identity: Identity,
    /// Nanoseconds since 1970 of the last change of content.
    pub(crate) modified: i64,
    pub(crate) links: u64,
    /// A character device 0:0, which is how an overlay says "deleted".
    pub(crate) is_whiteout: bool,
}

impl Tree {
    /// Opens the tree; its own path may lead through links, nothing in it.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty())?;
        Ok(Self {
            root,
            shown: path.to_owned(),
        })
    }

    /// Where it is, for messages.
    pub(crate) fn shown(&self, path: Option<&TreePath>) -> PathBuf {
        path.map_or_else(
            || self.shown.clone(),
            |path| self.shown.join(path.to_string()),
        )
    }

    /// The root's descriptor.
    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// What is at the path; nothing if nothing is, or a link is on the way.
    pub(crate) fn node(&self, path: &TreePath) -> io::Result<Option<Node>> {
        match self.resolve(Some(path), OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(found) => Ok(Some(Node::of(&fstat(&found)?)?)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A directory's descriptor, to work in.
    pub(crate) fn directory(&self, path: Option<&TreePath>) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        Ok(self.resolve(path, flags)?)
    }

    /// The directory that holds the path's last name.
    pub(crate) fn parent_of(&self, path: &TreePath) -> io::Result<OwnedFd> {
        self.directory(path.parent().as_ref())
    }

    /// Opens a regular file for reading, with what it is.
    pub(crate) fn file(&self, path: &TreePath) -> io::Result<(File, Node)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(self.resolve(Some(path), flags)?);
        let node = Node::of(&fstat(&file)?)?;
        if node.kind == NodeKind::File {
            Ok((file, node))
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ))
        }
    }

    /// The content of a regular file of at most `limit` bytes.
    pub(crate) fn read(&self, path: &TreePath, limit: u64) -> io::Result<Vec<u8>> {
        let (file, node) = self.file(path)?;
        read_at_most(file, node.identity.size, limit)
    }

    /// The digest of a regular file, and what the file was when it was read.
    pub(crate) fn digest(&self, path: &TreePath) -> io::Result<(Digest, Node)> {
        let (file, node) = self.file(path)?;
        Ok((digest_of(file)?, node))
    }

    /// Where a symbolic link points.
    pub(crate) fn link_target(&self, path: &TreePath) -> io::Result<Vec<u8>> {
        let link = self.resolve(Some(path), OFlags::PATH | OFlags::NOFOLLOW)?;
        Ok(readlinkat(&link, c"", Vec::new())?.into_bytes())
    }

    /// The names in a directory with what they are, sorted by name.
    pub(crate) fn children(&self, path: Option<&TreePath>) -> io::Result<Children> {
        children_of(&self.directory(path)?)
    }

    /// The names in a directory, unsorted, without asking what they are.
    pub(crate) fn names(&self, path: Option<&TreePath>) -> io::Result<Vec<Box<[u8]>>> {
        names_in(&self.directory(path)?)
    }

    /// A short extended attribute of a file or directory; longer ones are cut.
    pub(crate) fn attribute(&self, path: &TreePath, name: &str) -> io::Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        attribute_of(&self.resolve(Some(path), flags)?, name)
    }

    fn resolve(&self, path: Option<&TreePath>, flags: OFlags) -> Result<OwnedFd, Errno> {
        let guards = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        let bytes = path.map_or(b".".as_slice(), TreePath::as_bytes);
        let flags = flags | OFlags::CLOEXEC;
        for _ in 0..RETRIES {
            match openat2(&self.root, bytes, flags, Mode::empty(), guards) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
        Err(Errno::AGAIN)
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tree").field(&self.shown).finish()
    }
}

impl Node {
    /// What a `stat` says, or an error for what no system calls a file.
    pub(crate) fn of(stat: &Stat) -> io::Result<Self> {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => NodeKind::File,
            FileType::Directory => NodeKind::Directory,
            FileType::Symlink => NodeKind::Symlink,
            FileType::Fifo => NodeKind::Fifo,
            FileType::Socket => NodeKind::Socket,
            FileType::CharacterDevice | FileType::BlockDevice => NodeKind::Device,
            _ => return Err(io::Error::other("unknown kind of file")),
        };
        let nanos = |seconds: i64, nanos: u64| {
            seconds
                .saturating_mul(1_000_000_000)
                .saturating_add(i64::try_from(nanos).unwrap_or(0))
        };
        Ok(Self {
            kind,
            mode: stat.st_mode & 0o7777,
            identity: Identity {
                device: stat.st_dev,
                inode: stat.st_ino,
                size: u64::try_from(stat.st_size).unwrap_or(0),
                changed: nanos(stat.st_ctime, stat.st_ctime_nsec),
            },
            modified: nanos(stat.st_mtime, stat.st_mtime_nsec),
            #[allow(clippy::useless_conversion, reason = "narrower on aarch64")]
            links: u64::from(stat.st_nlink),
            is_whiteout: FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
                && stat.st_rdev == 0,
        })
    }

    /// What one name in an open directory is, without following it.
    pub(crate) fn at(directory: impl AsFd, name: &[u8]) -> io::Result<Option<Self>> {
        match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Self::of(&stat).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The nine permission bits.
    pub(crate) const fn permissions(&self) -> u32 {
        self.mode & 0o777
    }
}

/// The names in an open directory with what they are, sorted by name.
pub(crate) fn children_of(directory: &OwnedFd) -> io::Result<Children> {
    let mut children = Vec::new();
    for name in names_in(directory)? {
        // Gone again since the directory was read: then it is not there.
        if let Some(node) = Node::at(directory, &name)? {
            children.push((name, node));
        }
    }
    children.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(children)
}

/// The names in an open directory, unsorted.
pub(crate) fn names_in(directory: impl AsFd) -> io::Result<Vec<Box<[u8]>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        if names.len() >= MAX_NAMES {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "too many names in one directory",
            ));
        }
        names.push(name.into());
    }
    Ok(names)
}

/// A short extended attribute of something open.
pub(crate) fn attribute_of(file: impl AsFd, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut value = [0u8; 64];
    match fgetxattr(file, name, &mut value) {
        Ok(length) => Ok(Some(value.get(..length).unwrap_or(&value).to_vec())),
        // Longer than the buffer: present, and not one of the short ones we know.
        Err(Errno::RANGE) => Ok(Some(value.to_vec())),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether nothing is there: no such name, or no directory on the way to it.
///
/// A link on the way counts as nothing, for no link is ever followed.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    ) || error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}

/// All of a reader, refused when it has more than `limit` bytes.
pub(crate) fn read_at_most(reader: impl Read, expected: u64, limit: u64) -> io::Result<Vec<u8>> {
    let too_large = || io::Error::new(io::ErrorKind::FileTooLarge, "larger than the limit");
    if expected > limit {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
    // The size may have grown since it was asked.
    reader
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limit {
        return Err(too_large());
    }
    Ok(bytes)
}

/// The digest of everything a reader gives.
pub(crate) fn digest_of(mut reader: impl Read) -> io::Result<Digest> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0u8; 128 * 1024];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(Digest(hasher.finalize().into())),
            Ok(length) => hasher.update(buffer.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn links_are_seen_and_never_followed() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "canary").unwrap();
        symlink(outside.path(), folder.path().join("away")).unwrap();
        symlink("plain", folder.path().join("near")).unwrap();
        std::fs::write(folder.path().join("plain"), "text").unwrap();
        let tree = Tree::open(folder.path()).unwrap();

        let kind = |name: &str| tree.node(&path(name)).unwrap().map(|node| node.kind);
        assert_eq!(kind("away"), Some(NodeKind::Symlink));
        assert_eq!(kind("away/secret"), None);
        assert_eq!(kind("plain"), Some(NodeKind::File));
        assert!(tree.read(&path("away/secret"), 100).is_err());
        assert!(tree.read(&path("near"), 100).is_err());
        assert!(tree.children(Some(&path("away"))).is_err());
        assert_eq!(tree.link_target(&path("near")).unwrap(), b"plain");
        assert_eq!(tree.read(&path("plain"), 4).unwrap(), b"text");
        assert!(tree.read(&path("plain"), 3).is_err());
    }

    #[test]
    fn a_pipe_neither_blocks_nor_reads() {
        let folder = tempfile::tempdir().unwrap();
        rustix::fs::mknodat(
            CWD,
            folder.path().join("pipe"),
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let tree = Tree::open(folder.path()).unwrap();
        assert_eq!(
            tree.node(&path("pipe")).unwrap().unwrap().kind,
            NodeKind::Fifo
        );
        assert!(tree.read(&path("pipe"), 100).is_err());
    }

    #[test]
    fn a_digest_is_of_the_whole_content() {
        let folder = tempfile::tempdir().unwrap();
        let content = vec![7u8; 300_000];
        std::fs::write(folder.path().join("big"), &content).unwrap();
        let tree = Tree::open(folder.path()).unwrap();
        let (digest, node) = tree.digest(&path("big")).unwrap();
        assert_eq!(digest, Digest::of(&content));
        assert_eq!(node.identity.size, 300_000);
    }
}
