//! Whole trees: copied with all an overlay needs, and removed for good.
//!
//! Copies share blocks where the disk can, keep times (build tools look at
//! them) and keep what an overlay wrote to say "deleted" and "replaced".
//! Bounded in entries, bytes and depth; never follows a link.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, Timespec, Timestamps, XattrFlags, chmodat, fchmod,
    fgetxattr, flistxattr, fsetxattr, fstat, mkdirat, mknodat, openat, renameat, symlinkat,
    unlinkat, utimensat,
};
use rustix::io::Errno;

use crate::error::{Explain, FileError};
use crate::path::{TreePath, TreePathError};
use crate::tree::{Node, NodeKind, Tree, names_in};
use crate::write::{check_reserve, copy_content, create_in};

/// How much one layer may hold before it is refused as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Files, directories and links.
    pub entries: usize,
    /// Bytes of all files together.
    pub bytes: u64,
    /// Bytes of one file that is to be merged.
    pub file: u64,
    /// Bytes of a file that is still compared and merged as text.
    pub text: u64,
}

impl Limits {
    /// The limits that hold unless the caller chooses others.
    pub const STANDARD: Self = Self {
        entries: 1_000_000,
        bytes: 64 << 30,
        file: 4 << 30,
        text: 4 << 20,
    };
}

/// Whose tree is copied, which decides what of it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyOf {
    /// The project: content, permissions and times; special files stay behind.
    Project,
    /// A layer: also whiteouts, attributes and everything it will be refused for.
    Layer,
}

/// Why a tree could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A path in it is too long or too deep.
    #[error("a path in the tree cannot be copied")]
    Path(#[from] TreePathError),
    /// More entries than allowed.
    #[error("the tree has more than {limit} entries")]
    TooManyEntries {
        /// How many are allowed.
        limit: usize,
    },
    /// More bytes than allowed.
    #[error("the tree has more than {limit} bytes")]
    TooLarge {
        /// How many are allowed.
        limit: u64,
    },
}

/// A directory whose mode and times are set once it is filled.
struct Finished {
    path: TreePath,
    stat: Stat,
}

struct Copier<'a, F> {
    source: &'a Tree,
    target: &'a Tree,
    of: CopyOf,
    limits: &'a Limits,
    each: F,
    entries: usize,
    bytes: u64,
    unchecked: u64,
    finished: Vec<Finished>,
}

/// Copies everything below one root to an empty other one.
///
/// `each` is told of every copied entry as it was and as it is in the copy.
pub(crate) fn copy_tree(
    source: &Tree,
    target: &Tree,
    of: CopyOf,
    limits: &Limits,
    each: impl FnMut(&TreePath, &Node, &Node),
) -> Result<(), CopyError> {
    let mut copier = Copier {
        source,
        target,
        of,
        limits,
        each,
        entries: 0,
        bytes: 0,
        unchecked: u64::MAX,
        finished: Vec::new(),
    };
    let mut open = vec![None];
    while let Some(directory) = open.pop() {
        copier.copy_directory(directory.as_ref(), &mut open)?;
    }
    copier.finish()
}

impl<F: FnMut(&TreePath, &Node, &Node)> Copier<'_, F> {
    fn copy_directory(
        &mut self,
        directory: Option<&TreePath>,
        open: &mut Vec<Option<TreePath>>,
    ) -> Result<(), CopyError> {
        let shown = self.source.shown(directory);
        let from = self.source.directory(directory).at("read", &shown)?;
        let to_shown = self.target.shown(directory);
        let to = self.target.directory(directory).at("write", &to_shown)?;
        for (name, node) in crate::tree::children_of(&from).at("read", &shown)? {
            let path = TreePath::below(directory, &name)?;
            self.entries = self.entries.saturating_add(1);
            if self.entries > self.limits.entries {
                let limit = self.limits.entries;
                return Err(CopyError::TooManyEntries { limit });
            }
            if self.copy_entry(&from, &to, &path, &node)? {
                open.push(Some(path));
            }
        }
        Ok(())
    }

    /// Copies one name; says whether it is a directory to go into.
    fn copy_entry(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        path: &TreePath,
        node: &Node,
    ) -> Result<bool, CopyError> {
        let name = path.name();
        match node.kind {
            NodeKind::File => {
                self.copy_file(to, path)?;
            }
            NodeKind::Directory => return self.make_directory(to, path),
            NodeKind::Symlink => {
                let target = self
                    .source
                    .link_target(path)
                    .within("copy", self.source, path)?;
                symlinkat(&*target, to, name).within("copy", self.source, path)?;
                let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW).within(
                    "copy",
                    self.source,
                    path,
                )?;
                set_times(to, name, &stat).within("copy", self.source, path)?;
            }
            NodeKind::Device if node.is_whiteout && self.of == CopyOf::Layer => {
                make_node(to, name, FileType::CharacterDevice).within("copy", self.source, path)?;
            }
            NodeKind::Fifo if self.of == CopyOf::Layer => {
                make_node(to, name, FileType::Fifo).within("copy", self.source, path)?;
            }
            NodeKind::Socket if self.of == CopyOf::Layer => {
                make_node(to, name, FileType::Socket).within("copy", self.source, path)?;
            }
            NodeKind::Fifo | NodeKind::Socket | NodeKind::Device => return Ok(false),
        }
        if let Some(copy) = Node::at(to, name).within("copy", self.source, path)? {
            (self.each)(path, node, &copy);
        }
        Ok(false)
    }

    fn copy_file(&mut self, to: &OwnedFd, path: &TreePath) -> Result<(), CopyError> {
        if self.unchecked > 64 << 20 {
            check_reserve(to).at("write", &self.target.shown(Some(path)))?;
            self.unchecked = 0;
        }
        let (source, node) = self.source.file(path).within("copy", self.source, path)?;
        self.bytes = self.bytes.saturating_add(node.identity.size);
        if self.bytes > self.limits.bytes {
            let limit = self.limits.bytes;
            return Err(CopyError::TooLarge { limit });
        }
        let stat = fstat(&source).within("copy", self.source, path)?;
        let copy = create_in(to, path.name(), 0o600).within("copy", self.source, path)?;
        let length = copy_content(&source, &copy).within("copy", self.source, path)?;
        self.unchecked = self.unchecked.saturating_add(length);
        self.copy_attributes(&source, &copy)
            .within("copy", self.source, path)?;
        // Last of all, for setting an attribute needs the right to write.
        fchmod(&copy, Mode::from_raw_mode(self.mode(&node))).within("copy", self.source, path)?;
        rustix::fs::futimens(&copy, &times(&stat)).within("copy", self.source, path)?;
        Ok(())
    }

    fn make_directory(&mut self, to: &OwnedFd, path: &TreePath) -> Result<bool, CopyError> {
        let source = match self.source.directory(Some(path)) {
            Ok(source) => source,
            // Another disk is mounted there: no part of this tree.
            Err(error) if error.raw_os_error() == Some(Errno::XDEV.raw_os_error()) => {
                return Ok(false);
            }
            Err(error) => return Err(error).within("copy", self.source, path)?,
        };
        mkdirat(to, path.name(), Mode::from_raw_mode(0o700)).within("copy", self.source, path)?;
        let copy = self
            .target
            .directory(Some(path))
            .within("copy", self.source, path)?;
        self.copy_attributes(&source, &copy)
            .within("copy", self.source, path)?;
        let stat = fstat(&source).within("copy", self.source, path)?;
        self.finished.push(Finished {
            path: path.clone(),
            stat,
        });
        Ok(true)
    }

    /// Carries over `user.` attributes, without what names the overlay's origin.
    fn copy_attributes(&self, source: impl AsFd, copy: impl AsFd) -> io::Result<()> {
        if self.of == CopyOf::Project {
            return Ok(());
        }
        let mut names = vec![0u8; 64 * 1024];
        let length = match flistxattr(&source, &mut names) {
            Ok(length) => length,
            Err(Errno::OPNOTSUPP) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let names = names.get(..length).unwrap_or_default();
        for name in names.split(|byte| *byte == 0) {
            let overlay = name.strip_prefix(b"user.overlay.");
            if !name.starts_with(b"user.") || overlay.is_some_and(|name| name != b"opaque") {
                continue;
            }
            let mut value = vec![0u8; 64 * 1024];
            let length = fgetxattr(&source, name, &mut value)?;
            let value = value.get(..length).unwrap_or_default();
            fsetxattr(&copy, name, value, XattrFlags::empty())?;
        }
        Ok(())
    }

    fn mode(&self, node: &Node) -> u32 {
        match self.of {
            CopyOf::Project => node.permissions(),
            CopyOf::Layer => node.mode,
        }
    }

    /// Sets modes and times, deepest first, so that none disturbs another.
    fn finish(mut self) -> Result<(), CopyError> {
        while let Some(Finished { path, stat }) = self.finished.pop() {
            let directory =
                self.target
                    .directory(Some(&path))
                    .within("copy", self.target, &path)?;
            let node = Node::of(&stat).within("copy", self.target, &path)?;
            fchmod(&directory, Mode::from_raw_mode(self.mode(&node))).within(
                "copy",
                self.target,
                &path,
            )?;
            rustix::fs::futimens(&directory, &times(&stat)).within("copy", self.target, &path)?;
            let copy = Node::of(&fstat(&directory).within("copy", self.target, &path)?).within(
                "copy",
                self.target,
                &path,
            )?;
            (self.each)(&path, &node, &copy);
        }
        Ok(())
    }
}

/// Removes a directory of the store with all that is in it.
///
/// Only for trees that nothing uses any more: it gives itself the permission
/// to enter directories whose owner took it away. Directories are lifted to the
/// top before they are emptied, so no depth can exhaust stack or descriptors.
pub(crate) fn remove_tree(path: &Path) -> Result<(), FileError> {
    let top = match enter(CWD, path.as_os_str().as_encoded_bytes()) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error).at("remove", path),
    };
    empty_directory(&top).at("remove", path)?;
    unlinkat(CWD, path, AtFlags::REMOVEDIR).at("remove", path)
}

fn empty_directory(top: &OwnedFd) -> io::Result<()> {
    let mut lifted = 0u64;
    let mut open = names_in(top)?;
    while let Some(name) = open.pop() {
        if !unlink_unless_directory(top, &name)? {
            continue;
        }
        let inner = enter(top, &name)?;
        for child in names_in(&inner)? {
            if unlink_unless_directory(&inner, &child)? {
                // Moving a directory changes its `..`, which needs the right to.
                drop(enter(&inner, &child)?);
                lifted = lifted.saturating_add(1);
                let fresh = format!(".fluffy-removing-{}-{lifted}", std::process::id());
                renameat(&inner, &*child, top, fresh.as_bytes())?;
                open.push(fresh.into_bytes().into());
            }
        }
        unlinkat(top, &*name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Removes a name; says whether it is a directory, which stays.
fn unlink_unless_directory(directory: &OwnedFd, name: &[u8]) -> io::Result<bool> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(false),
        Err(Errno::ISDIR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Opens a directory with all rights for its owner, whatever it had before.
fn enter(directory: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match openat(&directory, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            chmodat(&directory, name, Mode::RWXU, AtFlags::empty())?;
            openat(&directory, name, flags, Mode::empty())?
        }
        other => other?,
    };
    fchmod(&opened, Mode::RWXU)?;
    Ok(opened)
}

fn make_node(to: &OwnedFd, name: &[u8], kind: FileType) -> io::Result<()> {
    match mknodat(to, name, kind, Mode::from_raw_mode(0o600), 0) {
        Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn times(stat: &Stat) -> Timestamps {
    let time = |seconds: i64, nanos: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanos).unwrap_or(0),
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

fn set_times(directory: &OwnedFd, name: &[u8], stat: &Stat) -> io::Result<()> {
    utimensat(directory, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}
