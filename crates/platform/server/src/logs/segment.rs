//! The files that lines are kept in: a journal that grows, and sealed segments.
//!
//! A journal is frames, each durable before its lines are acknowledged; what a
//! crash cut off fails its check and ends it. A sealed segment has what one
//! journal had, by instance and compressed, behind a header that says what is
//! where. Both are written once and never changed. Never believes a length.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use fluffy_base::Digest;
use fluffy_base::id::{EnvId, OrgId};
use serde::{Deserialize, Serialize};

const JOURNAL: &[u8; 8] = b"FLLOGJ1\n";
const SEALED: &[u8; 8] = b"FLLOGS1\n";

/// The largest frame, header or block; what says that it is larger is broken.
const MAX_PART: usize = 64 << 20;

/// Where lines are fewer, packing them harder is not worth the time.
const LEVEL: i32 = 3;

/// Whose lines they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The org.
    pub org: OrgId,
    /// The env.
    pub env: EnvId,
    /// The process type.
    pub process: String,
}

/// Lines of one instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Block {
    pub(super) source: Source,
    pub(super) instance: String,
    pub(super) lines: Vec<Record>,
}

/// One line as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Counts all lines of a store, in the order in which they came.
    pub(super) arrival: u64,
    pub(super) boot: String,
    pub(super) stream: String,
    pub(super) seq: u64,
    pub(super) at_ms: u64,
    pub(super) text: String,
    pub(super) truncated: bool,
    pub(super) dropped: u64,
}

/// What a sealed segment says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    /// When it was sealed, by the server's clock.
    pub(super) sealed_ms: u64,
    /// The blocks, in the order in which they stand.
    pub(super) blocks: Vec<Entry>,
}

/// What a header says of one block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) source: Source,
    pub(super) instance: String,
    /// The times of its lines, by their node's clock.
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
    /// The first and the last that came.
    pub(super) arrivals: (u64, u64),
    /// Bytes of text.
    pub(super) bytes: u64,
    /// The last number of each boot and stream.
    pub(super) streams: Vec<(String, String, u64)>,
    /// How long it is, packed and not, and what it must be.
    packed: u64,
    unpacked: u64,
    check: [u8; 8],
}

impl Header {
    /// The times of all lines.
    pub(super) fn times(&self) -> (u64, u64) {
        let blocks = &self.blocks;
        let from = blocks.iter().map(|it| it.from_ms).min();
        let to = blocks.iter().map(|it| it.to_ms).max();
        (from.unwrap_or(u64::MAX), to.unwrap_or(0))
    }

    /// The first and the last line that came.
    pub(super) fn arrivals(&self) -> (u64, u64) {
        let blocks = &self.blocks;
        let first = blocks.iter().map(|it| it.arrivals.0).min();
        let last = blocks.iter().map(|it| it.arrivals.1).max();
        (first.unwrap_or(u64::MAX), last.unwrap_or(0))
    }
}

/// A journal that is written.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    /// How much is in it and durable.
    pub(super) bytes: u64,
    /// Whether there may be a part of a frame behind that.
    is_torn: bool,
}

impl Journal {
    /// Begins a journal; the folder must be synced before it counts.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let mut file = private(path)?;
        file.write_all(JOURNAL)?;
        Ok(Self {
            file,
            bytes: JOURNAL.len() as u64,
            is_torn: false,
        })
    }

    /// Adds a frame; its lines are durable when this returns.
    pub(super) fn append(&mut self, blocks: &[Block]) -> io::Result<()> {
        let content = encode(&blocks)?;
        let length = u32::try_from(content.len()).map_err(io::Error::other)?;
        let mut frame = Vec::with_capacity(content.len() + 12);
        frame.extend(length.to_le_bytes());
        frame.extend(check(&content));
        frame.extend(content);
        if self.is_torn {
            self.file.set_len(self.bytes)?;
            self.file.seek(SeekFrom::Start(self.bytes))?;
        }
        self.is_torn = true;
        self.file.write_all(&frame)?;
        self.file.sync_data()?;
        self.is_torn = false;
        self.bytes += frame.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
impl Journal {
    /// Leaves half a frame behind, as a write that failed does.
    pub(super) fn tear(&mut self) {
        self.is_torn = true;
        self.file.write_all(&[9; 40]).unwrap();
    }
}

/// What a journal has that is whole, in its order. What follows the first frame
/// that is not was never acknowledged.
pub(super) fn recover(path: &Path) -> io::Result<Vec<Block>> {
    let mut file = File::open(path)?;
    let mut blocks = Vec::new();
    let mut magic = [0; 8];
    if file.read_exact(&mut magic).is_err() || &magic != JOURNAL {
        return Ok(blocks);
    }
    while let Some(content) = part(&mut file)? {
        let Ok(frame) = postcard::from_bytes::<Vec<Block>>(&content) else {
            break;
        };
        blocks.extend(frame);
    }
    Ok(blocks)
}

/// The next checked part of a file; none where it ends or is broken.
fn part(file: &mut File) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; 12];
    match file.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let [a, b, c, d, sum @ ..] = head;
    let length = u64::from(u32::from_le_bytes([a, b, c, d]));
    if length > MAX_PART as u64 {
        return Ok(None);
    }
    let mut content = Vec::new();
    file.take(length).read_to_end(&mut content)?;
    let whole = content.len() as u64 == length && check(&content) == sum;
    Ok(whole.then_some(content))
}

/// Writes a segment where nothing is yet; it is whole under its name or not
/// there. How large it is.
pub(super) fn seal(path: &Path, blocks: Vec<Block>, sealed_ms: u64) -> io::Result<(Header, u64)> {
    let mut by_instance: BTreeMap<String, Block> = BTreeMap::new();
    for block in blocks {
        match by_instance.get_mut(&block.instance) {
            Some(known) => known.lines.extend(block.lines),
            None => drop(by_instance.insert(block.instance.clone(), block)),
        }
    }
    let mut bodies = Vec::new();
    let mut entries = Vec::new();
    for block in by_instance.into_values() {
        let content = encode(&block.lines)?;
        let packed = zstd::encode_all(content.as_slice(), LEVEL)?;
        entries.push(entry(block, content.len(), &packed));
        bodies.push(packed);
    }
    let header = Header {
        sealed_ms,
        blocks: entries,
    };
    let size = write(path, &header, bodies.iter().map(|body| Ok(body.clone())))?;
    Ok((header, size))
}

fn entry(block: Block, unpacked: usize, packed: &[u8]) -> Entry {
    let lines = &block.lines;
    let times = || lines.iter().map(|line| line.at_ms);
    let arrivals = || lines.iter().map(|line| line.arrival);
    let mut streams: BTreeMap<(String, String), u64> = BTreeMap::new();
    for line in lines {
        let last = streams.entry((line.boot.clone(), line.stream.clone()));
        let last = last.or_default();
        *last = line.seq.max(*last);
    }
    let streams = streams.into_iter();
    Entry {
        from_ms: times().min().unwrap_or(0),
        to_ms: times().max().unwrap_or(0),
        arrivals: (arrivals().min().unwrap_or(0), arrivals().max().unwrap_or(0)),
        bytes: lines.iter().map(|line| line.text.len() as u64).sum(),
        streams: streams
            .map(|((boot, stream), last)| (boot, stream, last))
            .collect(),
        packed: packed.len() as u64,
        unpacked: unpacked as u64,
        check: check(packed),
        source: block.source,
        instance: block.instance,
    }
}

/// Writes a segment aside and moves it to its name.
fn write(
    path: &Path,
    header: &Header,
    bodies: impl Iterator<Item = io::Result<Vec<u8>>>,
) -> io::Result<u64> {
    let aside = path.with_extension("new");
    let mut file = private(&aside)?;
    let head = encode(header)?;
    let length = u32::try_from(head.len()).map_err(io::Error::other)?;
    file.write_all(SEALED)?;
    file.write_all(&length.to_le_bytes())?;
    file.write_all(&check(&head))?;
    file.write_all(&head)?;
    for body in bodies {
        file.write_all(&body?)?;
    }
    file.sync_all()?;
    let size = file.stream_position()?;
    fs::rename(&aside, path)?;
    sync_folder(path)?;
    Ok(size)
}

/// Makes the names in the folder of a file durable.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    File::open(folder)?.sync_all()
}

/// A sealed segment that is read.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) header: Header,
    file: File,
    /// Where its first block is.
    bodies: u64,
}

impl Segment {
    /// Opens a segment and reads its header.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "no segment of lines");
        let mut file = File::open(path)?;
        let mut magic = [0; 8];
        file.read_exact(&mut magic).map_err(|_| broken())?;
        let head = part(&mut file)?.filter(|_| &magic == SEALED);
        let header = head.and_then(|head| postcard::from_bytes(&head).ok());
        Ok(Self {
            header: header.ok_or_else(broken)?,
            bodies: file.stream_position()?,
            file,
        })
    }

    /// The lines of the blocks that are wanted, in the order in which they came.
    pub(super) fn lines(
        &mut self,
        wanted: impl Fn(&Entry) -> bool,
    ) -> io::Result<Vec<(Source, String, Vec<Record>)>> {
        let mut found = Vec::new();
        let mut at = self.bodies;
        for entry in &self.header.blocks {
            if wanted(entry) {
                let packed = body(&mut self.file, at, entry)?;
                let lines = unpack(&packed, entry)?;
                found.push((entry.source.clone(), entry.instance.clone(), lines));
            }
            at = at.saturating_add(entry.packed);
        }
        Ok(found)
    }

    /// Writes the segment again without some of its blocks; how large it is
    /// then, or none if it was not written because all stay.
    pub(super) fn without(
        &mut self,
        path: &Path,
        stays: impl Fn(&Entry) -> bool,
    ) -> io::Result<Option<(Header, u64)>> {
        if self.header.blocks.iter().all(&stays) {
            return Ok(None);
        }
        let mut at = self.bodies;
        let mut kept = Vec::new();
        for entry in &self.header.blocks {
            if stays(entry) {
                kept.push((at, entry.clone()));
            }
            at = at.saturating_add(entry.packed);
        }
        let header = Header {
            sealed_ms: self.header.sealed_ms,
            blocks: kept.iter().map(|(_, entry)| entry.clone()).collect(),
        };
        let file = &mut self.file;
        let bodies = kept.iter().map(|(at, entry)| body(file, *at, entry));
        let size = write(path, &header, bodies)?;
        Ok(Some((header, size)))
    }
}

fn body(file: &mut File, at: u64, entry: &Entry) -> io::Result<Vec<u8>> {
    let broken = || io::Error::new(io::ErrorKind::InvalidData, "a block of lines is broken");
    if entry.packed > MAX_PART as u64 {
        return Err(broken());
    }
    file.seek(SeekFrom::Start(at))?;
    let mut packed = Vec::new();
    file.take(entry.packed).read_to_end(&mut packed)?;
    match check(&packed) == entry.check {
        true => Ok(packed),
        false => Err(broken()),
    }
}

fn unpack(packed: &[u8], entry: &Entry) -> io::Result<Vec<Record>> {
    let most = entry.unpacked.min(MAX_PART as u64);
    let mut content = Vec::new();
    zstd::Decoder::new(packed)?
        .take(most)
        .read_to_end(&mut content)?;
    postcard::from_bytes(&content).map_err(io::Error::other)
}

fn encode(value: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_allocvec(value).map_err(io::Error::other)
}

fn check(content: &[u8]) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = *Digest::of(content).as_bytes();
    [a, b, c, d, e, f, g, h]
}

/// A new file that only its owner reads; one that was cut off goes.
fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)
}
