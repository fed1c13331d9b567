//! Writes a file system of the format EROFS, uncompressed.
//!
//! Block 0 holds the superblock, then come the contents of files in the order
//! in which they passed, then what did not fit beside its inode, then all
//! inodes, each followed by its attributes and its last few bytes. Everything
//! is little endian. The format is that of Linux' `fs/erofs/erofs_fs.h`.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek as _, SeekFrom, Write};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FallocateFlags, fallocate};

use super::Wrong;
use super::tree::{Attribute, Body, Content, Node, NodeId, Tree};

pub(super) const BLOCK: u64 = 4_096;
pub(super) const BLOCK_SIZE: usize = 4_096;
const BLOCK_BITS: u8 = 12;

/// Inodes are counted in slots of this size.
pub(super) const SLOT: u64 = 32;
pub(super) const INODE: u64 = 64;

/// Files below this size are kept beside their inode.
const SMALL: u64 = 2_048;

/// How much is copied at once.
const PIECE: usize = 128 << 10;

pub(super) const SUPERBLOCK: u64 = 1_024;
pub(super) const MAGIC: u32 = 0xE0F5_E1E2;
/// The times are those of changes to content.
const COMPAT_MTIME: u32 = 2;

/// How the content of an inode is laid out.
pub(super) const PLAIN: u16 = 0;
pub(super) const INLINE: u16 = 2;

pub(super) const DIRENT: usize = 12;
const ATTRIBUTES_HEADER: u64 = 12;

/// Takes contents as they pass, and ends with a file system.
pub(super) struct Store<'a> {
    result: &'a File,
    aside: &'a File,
    next_block: u64,
    aside_end: u64,
}

/// What was written.
pub(super) struct Written {
    pub(super) size: u64,
    pub(super) inodes: u64,
}

impl<'a> Store<'a> {
    pub(super) const fn new(result: &'a File, aside: &'a File) -> Self {
        Self {
            result,
            aside,
            next_block: 1,
            aside_end: 0,
        }
    }

    /// Takes the content of a file from a stream.
    pub(super) fn take(&mut self, stream: &mut impl Read, size: u64) -> Result<Content, Wrong> {
        let is_small = size < SMALL;
        let start = match is_small {
            true => self.aside_end,
            false => self.next_block * BLOCK,
        };
        let mut piece = vec![0; PIECE.min(usize::try_from(size).unwrap_or(PIECE))];
        let mut taken = 0;
        while taken < size {
            let most = usize::try_from(size - taken).unwrap_or(PIECE).min(PIECE);
            let piece = piece.get_mut(..most).unwrap_or_default();
            let read = stream.read(piece)?;
            if read == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let file = if is_small { self.aside } else { self.result };
            let piece = piece.get(..read).unwrap_or_default();
            file.write_all_at(piece, start + taken)
                .map_err(super::write)?;
            taken += read as u64;
        }
        match is_small {
            true => self.aside_end += size,
            false => {
                self.allocate(size.div_ceil(BLOCK)).map_err(super::write)?;
            }
        }
        Ok(Content { start, size })
    }

    /// Frees the place of what nothing leads to any more.
    pub(super) fn forget(&self, content: Content) -> io::Result<()> {
        if content.size < SMALL {
            return Ok(());
        }
        let size = content.size.div_ceil(BLOCK) * BLOCK;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(self.result, hole, content.start, size) {
            // Then it stays, unseen.
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            other => Ok(other?),
        }
    }

    fn allocate(&mut self, blocks: u64) -> io::Result<u32> {
        let start = self.next_block;
        self.next_block += blocks;
        match (u32::try_from(start), u32::try_from(self.next_block)) {
            (Ok(start), Ok(_)) => Ok(start),
            _ => Err(io::ErrorKind::FileTooLarge.into()),
        }
    }

    /// Writes all that is about the contents.
    pub(super) fn finish(mut self, tree: &Tree) -> io::Result<Written> {
        let mut inodes = self.lay_out(tree)?;
        let mut at = INODE;
        let mut numbers = vec![0; tree.len()];
        for inode in &mut inodes {
            at = inode.settle(at);
            if let Some(number) = numbers.get_mut(inode.id.index()) {
                *number = inode.at / SLOT;
            }
        }
        let meta_blocks = at.div_ceil(BLOCK);
        let meta_start = self.allocate(meta_blocks)?;
        let end = self.next_block * BLOCK;

        let mut result = self.result;
        result.seek(SeekFrom::Start(u64::from(meta_start) * BLOCK))?;
        let mut meta = Placed {
            file: BufWriter::with_capacity(PIECE, result),
            at: 0,
        };
        for (place, inode) in (1..).zip(&inodes) {
            self.write_inode(tree, inode, place, &numbers, &mut meta)?;
        }
        meta.pad_to(meta_blocks * BLOCK)?;
        meta.file.flush()?;
        drop(meta);

        let root = numbers.first().copied().unwrap_or_default();
        let superblock = superblock(root, inodes.len() as u64, end / BLOCK, meta_start)?;
        self.result.write_all_at(&superblock, SUPERBLOCK)?;
        self.result.set_len(end)?;
        Ok(Written {
            size: end,
            inodes: inodes.len() as u64,
        })
    }

    /// All inodes that can be reached, each once, the root first.
    fn lay_out(&mut self, tree: &Tree) -> io::Result<Vec<Inode>> {
        let mut inodes = Vec::new();
        let mut is_seen = vec![false; tree.len()];
        let mut waiting = vec![(NodeId::ROOT, NodeId::ROOT)];
        while let Some((id, parent)) = waiting.pop() {
            let Some(is_seen) = is_seen.get_mut(id.index()) else {
                continue;
            };
            if std::mem::replace(is_seen, true) {
                continue;
            }
            let node = tree.node(id);
            inodes.push(self.inode(node, id, parent)?);
            if let Body::Folder(children) = &node.body {
                waiting.extend(children.values().rev().map(|child| (*child, id)));
            }
        }
        Ok(inodes)
    }

    fn inode(&mut self, node: &Node, id: NodeId, parent: NodeId) -> io::Result<Inode> {
        let attributes = attributes_size(&node.meta.attributes);
        let size = match &node.body {
            Body::Folder(children) => {
                let names = children.keys().map(Vec::as_slice);
                folder_size(names.chain([&b"."[..], b".."]).collect())
            }
            Body::File(content) => content.size,
            Body::Link(target) => target.len() as u64,
            Body::Pipe => 0,
        };
        let mut inode = Inode {
            id,
            parent,
            size,
            attributes,
            tail: 0,
            block: 0,
            at: 0,
        };
        if let Body::File(content) = &node.body
            && content.size >= SMALL
        {
            inode.block = block_of(content.start)?;
            return Ok(inode);
        }
        let tail = size % BLOCK;
        if INODE + attributes + tail <= BLOCK {
            inode.tail = tail;
        }
        let blocks = match inode.tail {
            0 => size.div_ceil(BLOCK),
            _ => size / BLOCK,
        };
        if blocks > 0 {
            inode.block = self.allocate(blocks)?;
        }
        Ok(inode)
    }

    fn write_inode(
        &self,
        tree: &Tree,
        inode: &Inode,
        place: u32,
        numbers: &[u64],
        meta: &mut Placed<'_>,
    ) -> io::Result<()> {
        let node = tree.node(inode.id);
        let is_folder = |id: &&NodeId| matches!(tree.node(**id).body, Body::Folder(_));
        let (kind, links) = match &node.body {
            Body::Folder(children) => {
                let folders = children.values().filter(is_folder).count();
                (
                    0o040_000,
                    u32::try_from(folders).unwrap_or(u32::MAX).saturating_add(2),
                )
            }
            Body::File(_) => (0o100_000, node.names),
            Body::Link(_) => (0o120_000, node.names),
            Body::Pipe => (0o010_000, node.names),
        };
        let layout = match inode.tail {
            0 => PLAIN,
            _ => INLINE,
        };
        let mut bytes = Vec::with_capacity(BLOCK_SIZE);
        let attributes_count = match inode.attributes {
            0 => 0,
            size => (size - ATTRIBUTES_HEADER) / 4 + 1,
        };
        let attributes_count = u16::try_from(attributes_count).map_err(io::Error::other)?;
        put16(&mut bytes, 1 | layout << 1);
        put16(&mut bytes, attributes_count);
        put16(&mut bytes, kind | node.meta.mode);
        put16(&mut bytes, 0);
        put64(&mut bytes, inode.size);
        put32(&mut bytes, inode.block);
        put32(&mut bytes, place);
        put32(&mut bytes, node.meta.owner.0);
        put32(&mut bytes, node.meta.owner.1);
        bytes.extend(node.meta.modified.seconds.to_le_bytes());
        put32(&mut bytes, node.meta.modified.nanos);
        put32(&mut bytes, links);
        bytes.extend([0; 16]);
        put_attributes(&mut bytes, &node.meta.attributes);

        let content = match &node.body {
            Body::File(content) if content.size >= SMALL => Vec::new(),
            Body::File(content) => {
                let mut small = vec![0; usize::try_from(content.size).unwrap_or_default()];
                self.aside.read_exact_at(&mut small, content.start)?;
                small
            }
            Body::Folder(children) => {
                let number = |id: NodeId| numbers.get(id.index()).copied().unwrap_or_default();
                let mut entries: Vec<(&[u8], u64, u8)> = children
                    .iter()
                    .map(|(name, id)| (&**name, number(*id), kind_of(&tree.node(*id).body)))
                    .collect();
                entries.push((b".", number(inode.id), FOLDER));
                entries.push((b"..", number(inode.parent), FOLDER));
                folder(entries)
            }
            Body::Link(target) => target.clone(),
            Body::Pipe => Vec::new(),
        };
        let tail = usize::try_from(inode.tail).unwrap_or_default();
        let (before, tail) = content.split_at(content.len().saturating_sub(tail));
        if !before.is_empty() {
            let start = u64::from(inode.block) * BLOCK;
            self.result.write_all_at(before, start)?;
        }
        bytes.extend(tail);
        meta.pad_to(inode.at)?;
        meta.write(&bytes)
    }
}

/// Where an inode and its content are.
struct Inode {
    id: NodeId,
    parent: NodeId,
    size: u64,
    /// The bytes of its attributes.
    attributes: u64,
    /// The last bytes of its content, which follow it.
    tail: u64,
    /// Where the rest of its content begins.
    block: u32,
    /// Where it is, from the first inode.
    at: u64,
}

impl Inode {
    /// Takes the first place from here on, and says where it ends.
    fn settle(&mut self, from: u64) -> u64 {
        let size = INODE + self.attributes + self.tail;
        let mut at = from.next_multiple_of(SLOT);
        // What is one piece stays in one block.
        let whole = match self.tail {
            0 => INODE,
            _ => size,
        };
        if at / BLOCK != (at + whole - 1) / BLOCK {
            at = at.next_multiple_of(BLOCK);
        }
        self.at = at;
        at + size
    }
}

/// Writes forward only.
struct Placed<'a> {
    file: BufWriter<&'a File>,
    at: u64,
}

impl Placed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    fn pad_to(&mut self, at: u64) -> io::Result<()> {
        let gap = usize::try_from(at.saturating_sub(self.at)).unwrap_or_default();
        self.write(&vec![0; gap])
    }
}

fn superblock(root: u64, inodes: u64, blocks: u64, meta: u32) -> io::Result<Vec<u8>> {
    let root = u16::try_from(root).map_err(io::Error::other)?;
    let blocks = u32::try_from(blocks).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(128);
    put32(&mut bytes, MAGIC);
    put32(&mut bytes, 0);
    put32(&mut bytes, COMPAT_MTIME);
    bytes.extend([BLOCK_BITS, 0]);
    put16(&mut bytes, root);
    put64(&mut bytes, inodes);
    put64(&mut bytes, 0);
    put32(&mut bytes, 0);
    put32(&mut bytes, blocks);
    put32(&mut bytes, meta);
    // No shared attributes, no name, no features that an old kernel lacks.
    bytes.resize(128, 0);
    Ok(bytes)
}

const FOLDER: u8 = 2;

const fn kind_of(body: &Body) -> u8 {
    match body {
        Body::File(_) => 1,
        Body::Folder(_) => FOLDER,
        Body::Pipe => 5,
        Body::Link(_) => 7,
    }
}

/// How many entries go into each block, in order.
fn blocks_of<'a>(names: impl Iterator<Item = &'a [u8]>) -> Vec<(usize, usize)> {
    let mut blocks = vec![(0, 0)];
    for name in names {
        let size = DIRENT + name.len();
        match blocks.last_mut() {
            Some((count, used)) if *used + size <= BLOCK_SIZE => {
                *count += 1;
                *used += size;
            }
            _ => blocks.push((1, size)),
        }
    }
    blocks
}

fn folder_size(mut names: Vec<&[u8]>) -> u64 {
    names.sort_unstable();
    let blocks = blocks_of(names.into_iter());
    let last = blocks.last().map_or(0, |(_, used)| *used);
    (blocks.len().saturating_sub(1) * BLOCK_SIZE + last) as u64
}

/// The content of a folder: in each block first its entries, then their names.
fn folder(mut entries: Vec<(&[u8], u64, u8)>) -> Vec<u8> {
    entries.sort_unstable();
    let mut bytes = Vec::new();
    let mut rest = entries.as_slice();
    for (count, _) in blocks_of(entries.iter().map(|(name, ..)| *name)) {
        bytes.resize(bytes.len().next_multiple_of(BLOCK_SIZE), 0);
        let (here, after) = rest.split_at(count);
        rest = after;
        let mut name_at = count * DIRENT;
        for (name, number, kind) in here {
            put64(&mut bytes, *number);
            // Names end within a block.
            put16(&mut bytes, u16::try_from(name_at).unwrap_or_default());
            bytes.extend([*kind, 0]);
            name_at += name.len();
        }
        for (name, ..) in here {
            bytes.extend(*name);
        }
    }
    bytes
}

fn attributes_size(attributes: &[Attribute]) -> u64 {
    let sizes = attributes.iter().map(|one| {
        let size = 4 + one.name.len() + one.value.len();
        size.next_multiple_of(4) as u64
    });
    match attributes {
        [] => 0,
        _ => ATTRIBUTES_HEADER + sizes.sum::<u64>(),
    }
}

fn put_attributes(bytes: &mut Vec<u8>, attributes: &[Attribute]) {
    if attributes.is_empty() {
        return;
    }
    bytes.extend([0; 12]);
    for one in attributes {
        // Both were bounded when they were read.
        bytes.push(u8::try_from(one.name.len()).unwrap_or_default());
        bytes.push(one.kind);
        put16(bytes, u16::try_from(one.value.len()).unwrap_or_default());
        bytes.extend(&one.name);
        bytes.extend(&one.value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
}

fn block_of(start: u64) -> io::Result<u32> {
    u32::try_from(start / BLOCK).map_err(io::Error::other)
}

fn put16(bytes: &mut Vec<u8>, number: u16) {
    bytes.extend(number.to_le_bytes());
}

fn put32(bytes: &mut Vec<u8>, number: u32) {
    bytes.extend(number.to_le_bytes());
}

fn put64(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend(number.to_le_bytes());
}
