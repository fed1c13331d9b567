//! Unfolds a root file system into a folder, where the kernel cannot mount it.
//!
//! Reads what `erofs` writes and nothing else. The file comes from a worker
//! that read a stranger's layers, so every number in it is doubted, and names
//! are followed from folder to folder, never through a link and never out.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use fluffy_base::{Digest, Hasher};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
    chmodat, chownat, fsetxattr, linkat, mkdirat, mknodat, openat2, symlinkat, utimensat,
};

use super::Root;
use super::erofs::{BLOCK, BLOCK_SIZE, DIRENT, INLINE, INODE, MAGIC, PLAIN, SLOT, SUPERBLOCK};

/// The deepest folder, a little more than layers may have.
const DEEPEST: usize = 130;
/// The longest link, and the longest name.
const LONGEST_LINK: u64 = 4_096;
const LONGEST_NAME: usize = 255;
/// The most that the entries of one folder take.
const LARGEST_FOLDER: u64 = 512 << 20;

/// Unfolds a root file system into an empty folder.
///
/// # Errors
/// It is none of ours, or the folder cannot be filled.
pub(crate) fn unfold(image: &File, about: &Root, into: &Path) -> io::Result<()> {
    let image = Image::open(image, about)?;
    let top = open_folder(CWD, into.as_os_str().as_bytes(), ResolveFlags::empty())?;
    let mut work = Work {
        left: about.inodes,
        bytes: about.size,
        named: HashMap::new(),
        image,
    };
    work.folder(top, work.image.root)
}

/// What is hashed of a folder, so that a change can be found.
///
/// # Errors
/// It cannot be read.
pub(crate) fn digest_of_folder(folder: &Path) -> io::Result<Digest> {
    let (mut hasher, mut piece) = (Hasher::new(), vec![0; 1 << 20]);
    let mut waiting = vec![folder.to_owned()];
    while let Some(path) = waiting.pop() {
        let about = fs::symlink_metadata(&path)?;
        let name = path.strip_prefix(folder).unwrap_or(&path);
        let what = (about.mode(), about.uid(), about.gid(), about.mtime());
        hasher.update(format!("{name:?} {what:?} {}\n", about.size()).as_bytes());
        if about.is_dir() {
            let entries = fs::read_dir(&path)?.map(|entry| Ok(entry?.path()));
            let mut entries = entries.collect::<io::Result<Vec<_>>>()?;
            entries.sort_unstable();
            waiting.append(&mut entries);
        } else if about.is_symlink() {
            hasher.update(fs::read_link(&path)?.as_os_str().as_bytes());
        } else if about.is_file() {
            let mut file = File::open(&path)?;
            loop {
                match file.read(&mut piece)? {
                    0 => break,
                    read => hasher.update(piece.get(..read).unwrap_or_default()),
                }
            }
        }
    }
    Ok(hasher.finish())
}

fn wrong(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Opens a folder by one name; a link is none.
fn open_folder(at: BorrowedFd<'_>, name: &[u8], how: ResolveFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat2(at, name, flags, Mode::empty(), how)?)
}

fn beneath() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
}

/// The file, as far as it is believed.
struct Image<'a> {
    file: &'a File,
    end: u64,
    /// Where inodes are counted from.
    start: u64,
    /// The number of the root.
    root: u64,
}

/// Something in it.
struct Inode {
    kind: FileType,
    mode: Mode,
    size: u64,
    owner: (u32, u32),
    modified: Timespec,
    links: u32,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where its content is: a part by blocks, and the rest after it.
    blocks: u64,
    tail: (u64, u64),
}

impl<'a> Image<'a> {
    fn open(file: &'a File, about: &Root) -> io::Result<Self> {
        let mut bytes = [0; 128];
        file.read_exact_at(&mut bytes, SUPERBLOCK)?;
        if u32_at(&bytes, 0)? != MAGIC {
            return Err(wrong("it is no root file system"));
        }
        Ok(Self {
            file,
            end: file.metadata()?.len().min(about.size),
            start: u64::from(u32_at(&bytes, 40)?) * BLOCK,
            root: u64::from(u16_at(&bytes, 14)?),
        })
    }

    /// Bytes of the file, none of which are outside.
    fn read(&self, at: u64, size: u64) -> io::Result<Vec<u8>> {
        let end = at.checked_add(size).filter(|end| *end <= self.end);
        end.ok_or_else(|| wrong("something is outside of it"))?;
        let mut bytes = vec![0; usize::try_from(size).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }

    fn inode(&self, number: u64) -> io::Result<Inode> {
        let at = number
            .checked_mul(SLOT)
            .and_then(|it| it.checked_add(self.start));
        let at = at.ok_or_else(|| wrong("an inode is outside of it"))?;
        let bytes = self.read(at, INODE)?;
        let (format, mode) = (u16_at(&bytes, 0)?, u16_at(&bytes, 4)?);
        let size = u64_at(&bytes, 8)?;
        let attributes = match u16_at(&bytes, 2)? {
            0 => 0,
            count => 12 + (u64::from(count) - 1) * 4,
        };
        let whole = u64::from(u32_at(&bytes, 16)?) * BLOCK;
        let tail = match format >> 1 {
            it if it == PLAIN => 0,
            it if it == INLINE => size % BLOCK,
            _ => return Err(wrong("a content is laid out in no way of ours")),
        };
        Ok(Inode {
            kind: FileType::from_raw_mode(u32::from(mode)),
            mode: Mode::from_raw_mode(u32::from(mode) & 0o7777),
            size,
            owner: (u32_at(&bytes, 24)?, u32_at(&bytes, 28)?),
            modified: Timespec {
                tv_sec: i64::from_le_bytes(u64_at(&bytes, 32)?.to_le_bytes()),
                tv_nsec: i64::from(u32_at(&bytes, 40)?.min(999_999_999)),
            },
            links: u32_at(&bytes, 44)?,
            attributes: attributes_of(&self.read(at + INODE, attributes)?)?,
            blocks: whole,
            tail: (at + INODE + attributes, tail),
        })
    }

    /// A content that is small: a link, a folder.
    fn whole(&self, inode: &Inode, most: u64) -> io::Result<Vec<u8>> {
        if inode.size > most {
            return Err(wrong("something is larger than it can be"));
        }
        let mut bytes = self.read(inode.blocks, inode.size - inode.tail.1)?;
        bytes.extend(self.read(inode.tail.0, inode.tail.1)?);
        Ok(bytes)
    }

    /// The names in a folder, each with the number of what it means.
    fn entries(&self, inode: &Inode) -> io::Result<Vec<(Vec<u8>, u64)>> {
        let bytes = self.whole(inode, LARGEST_FOLDER)?;
        let mut entries = Vec::new();
        for block in bytes.chunks(BLOCK_SIZE) {
            let first = usize::from(u16_at(block, 8)?);
            let count = first / DIRENT;
            for place in 0..count {
                let at = place * DIRENT;
                let from = usize::from(u16_at(block, at + 8)?);
                let to = match place + 1 < count {
                    true => usize::from(u16_at(block, at + DIRENT + 8)?),
                    false => block.len(),
                };
                let name = block.get(from..to).ok_or_else(|| wrong("a name is none"))?;
                // The last name of a block ends where the zeros begin.
                let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                if matches!(name, b"." | b"..") {
                    continue;
                }
                if name.is_empty() || name.len() > LONGEST_NAME || name.contains(&b'/') {
                    return Err(wrong("a name is none"));
                }
                entries.push((name.to_vec(), u64_at(block, at)?));
            }
        }
        Ok(entries)
    }
}

fn attributes_of(bytes: &[u8]) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut attributes = Vec::new();
    let mut rest = bytes.get(12..).unwrap_or_default();
    while let [name, kind, ..] = *rest {
        let (name, value) = (usize::from(name), usize::from(u16_at(rest, 2)?));
        let none = || wrong("an attribute is none");
        let prefix: &[u8] = match kind {
            1 => b"user.",
            2 => b"system.posix_acl_access",
            3 => b"system.posix_acl_default",
            6 => b"security.",
            _ => return Err(none()),
        };
        let own = rest.get(4..4 + name).ok_or_else(none)?;
        let content = rest.get(4 + name..4 + name + value).ok_or_else(none)?;
        attributes.push(([prefix, own].concat(), content.to_vec()));
        let next = (4 + name + value).next_multiple_of(4);
        rest = rest.get(next..).unwrap_or_default();
    }
    Ok(attributes)
}

/// A folder that is being filled.
struct Level {
    folder: OwnedFd,
    inode: Inode,
    entries: std::vec::IntoIter<(Vec<u8>, u64)>,
    name: Vec<u8>,
}

struct Work<'a> {
    image: Image<'a>,
    /// How many things may still come, and how many bytes.
    left: u64,
    bytes: u64,
    /// Where things with several names have their first.
    named: HashMap<u64, Vec<Vec<u8>>>,
}

impl Work<'_> {
    /// Fills a folder and all that are in it.
    fn folder(&mut self, top: OwnedFd, root: u64) -> io::Result<()> {
        let start = top.try_clone()?;
        let mut levels = vec![self.level(top, root, Vec::new())?];
        while let Some(level) = levels.last_mut() {
            let Some((name, number)) = level.entries.next() else {
                // What is in it is there, and changes its time no more.
                tell(&level.folder, &level.inode)?;
                levels.pop();
                continue;
            };
            let at = level.folder.as_fd();
            let inode = self.image.inode(number)?;
            if inode.kind == FileType::Directory {
                self.count()?;
                mkdirat(at, &*name, Mode::RWXU)?;
                let folder = open_folder(at, &name, beneath())?;
                if levels.len() >= DEEPEST {
                    return Err(wrong("it is too deep"));
                }
                levels.push(self.level(folder, number, name)?);
                continue;
            }
            if let Some(first) = self.named.get(&number) {
                again(&start, first, (at, &name))?;
                continue;
            }
            self.count()?;
            self.thing(at, &name, &inode)?;
            if inode.links > 1 {
                let way = levels.iter().skip(1).map(|level| level.name.clone());
                self.named.insert(number, way.chain([name]).collect());
            }
        }
        Ok(())
    }

    fn level(&self, folder: OwnedFd, number: u64, name: Vec<u8>) -> io::Result<Level> {
        let inode = self.image.inode(number)?;
        if inode.kind != FileType::Directory {
            return Err(wrong("its root is no folder"));
        }
        let entries = self.image.entries(&inode)?.into_iter();
        Ok(Level {
            folder,
            inode,
            entries,
            name,
        })
    }

    fn count(&mut self) -> io::Result<()> {
        let left = self.left.checked_sub(1);
        self.left = left.ok_or_else(|| wrong("more is in it than was said"))?;
        Ok(())
    }

    /// Makes what is no folder.
    fn thing(&mut self, at: BorrowedFd<'_>, name: &[u8], inode: &Inode) -> io::Result<()> {
        match inode.kind {
            FileType::RegularFile => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let file = openat2(at, name, flags | OFlags::NOFOLLOW, Mode::RWXU, beneath())?;
                let file = File::from(file);
                self.fill(&file, inode)?;
                tell(&file.into(), inode)
            }
            FileType::Symlink => {
                let target = self.image.whole(inode, LONGEST_LINK)?;
                symlinkat(&*target, at, name)?;
                tell_at(at, name, inode)
            }
            FileType::Fifo => {
                mknodat(at, name, FileType::Fifo, inode.mode, 0)?;
                // A new pipe has what the mask left of its mode.
                chmodat(at, name, inode.mode, AtFlags::empty())?;
                tell_at(at, name, inode)
            }
            _ => Err(wrong("something in it is of no kind of ours")),
        }
    }

    fn fill(&mut self, mut file: &File, inode: &Inode) -> io::Result<()> {
        let left = self.bytes.checked_sub(inode.size);
        self.bytes = left.ok_or_else(|| wrong("more is in it than was said"))?;
        let (mut at, end) = (inode.blocks, inode.size - inode.tail.1);
        let end = inode
            .blocks
            .checked_add(end)
            .ok_or_else(|| wrong("a file is none"))?;
        while at < end {
            let piece = self.image.read(at, (end - at).min(1 << 20))?;
            file.write_all(&piece)?;
            at += piece.len() as u64;
        }
        file.write_all(&self.image.read(inode.tail.0, inode.tail.1)?)
    }
}

/// Gives something its second name.
fn again(start: &OwnedFd, first: &[Vec<u8>], to: (BorrowedFd<'_>, &[u8])) -> io::Result<()> {
    let Some((last, way)) = first.split_last() else {
        return Ok(());
    };
    let mut folder = start.try_clone()?;
    for name in way {
        folder = open_folder(folder.as_fd(), name, beneath())?;
    }
    linkat(&folder, &**last, to.0, to.1, AtFlags::empty())?;
    Ok(())
}

/// Owner, attributes, mode and time of what is open, in the order in which
/// none undoes another.
fn tell(file: &OwnedFd, inode: &Inode) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(inode.owner.0), Gid::from_raw(inode.owner.1));
    rustix::fs::fchown(file, Some(user), Some(group))?;
    for (name, value) in &inode.attributes {
        match fsetxattr(file, OsStr::from_bytes(name), value, XattrFlags::empty()) {
            // This file system has none of them.
            Err(rustix::io::Errno::OPNOTSUPP) => {}
            done => done?,
        }
    }
    rustix::fs::fchmod(file, inode.mode)?;
    rustix::fs::futimens(file, &times(inode))?;
    Ok(())
}

/// The same of what cannot be opened.
fn tell_at(at: BorrowedFd<'_>, name: &[u8], inode: &Inode) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(inode.owner.0), Gid::from_raw(inode.owner.1));
    let itself = AtFlags::SYMLINK_NOFOLLOW;
    chownat(at, name, Some(user), Some(group), itself)?;
    utimensat(at, name, &times(inode), itself)?;
    Ok(())
}

fn times(inode: &Inode) -> Timestamps {
    Timestamps {
        last_access: inode.modified,
        last_modification: inode.modified,
    }
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> io::Result<[u8; N]> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().ok_or_else(|| wrong("a number is missing"))
}

fn u16_at(bytes: &[u8], at: usize) -> io::Result<u16> {
    bytes_at(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> io::Result<u32> {
    bytes_at(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> io::Result<u64> {
    bytes_at(bytes, at).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests;
