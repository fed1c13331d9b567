//! `.zip`: by its directory at the end, which must agree with everything else.
//!
//! Two readers that believe different parts of a `.zip` see different files.
//! So an entry counts only where its own header says the same as the
//! directory, entries do not overlap, and what this does not know is refused.

use std::fs::File;
use std::io::{BufReader, Read, Seek as _, SeekFrom};

use flate2::Crc;
use flate2::read::DeflateDecoder;

use super::{Entry, Folder, MAX_ENTRIES, UnpackError, What, refused};

/// The largest directory.
const MAX_DIRECTORY: u64 = 32 << 20;

const LOCAL: usize = 30;
const CENTRAL: usize = 46;
const END: usize = 22;

/// An entry as the directory has it.
struct Listed {
    name: Vec<u8>,
    mode: u32,
    method: u16,
    sum: u32,
    packed: u64,
    size: u64,
    at: u64,
}

/// Unpacks it.
pub(super) fn unpack(
    file: &mut File,
    size: u64,
    folder: &mut Folder<'_>,
) -> Result<(), UnpackError> {
    let (mut listed, directory) = list(file, size)?;
    listed.sort_by_key(|one| one.at);
    let mut free = 0;
    for one in listed {
        if one.at < free {
            return Err(refused(&one.name, "lies over another file"));
        }
        let content = find(file, &one)?;
        free = content.saturating_add(one.packed);
        if free > directory {
            return Err(broken("a file lies behind its end"));
        }
        file.seek(SeekFrom::Start(content))?;
        let packed = BufReader::new(file.take(one.packed));
        entry(&one, packed, folder)?;
    }
    Ok(())
}

fn entry(one: &Listed, packed: impl Read, folder: &mut Folder<'_>) -> Result<(), UnpackError> {
    let mut stored;
    let mut deflated;
    let content: &mut dyn Read = match one.method {
        0 => {
            stored = packed;
            &mut stored
        }
        8 => {
            deflated = DeflateDecoder::new(packed);
            &mut deflated
        }
        _ => {
            return Err(refused(
                &one.name,
                "is compressed in a way that is not known",
            ));
        }
    };
    let mut content = Summed {
        inner: content,
        sum: Crc::new(),
    };
    let kind = one.mode & 0o170_000;
    let mut target = Vec::new();
    let what = match kind {
        _ if one.name.ends_with(b"/") && matches!(kind, 0 | 0o040_000) => match one.size {
            0 => What::Directory,
            _ => What::Other("has content and is no file"),
        },
        0 | 0o100_000 => What::File(&mut content, one.size),
        0o120_000 => {
            Read::by_ref(&mut content)
                .take(one.size.min(4_096))
                .read_to_end(&mut target)?;
            What::Link(&target)
        }
        0o020_000 | 0o060_000 => What::Other("is a device"),
        0o010_000 => What::Other("is a pipe"),
        _ => What::Other("is neither a file, a directory nor a link"),
    };
    let has_content = matches!(what, What::File(..) | What::Link(_));
    folder.take(Entry {
        name: &one.name,
        mode: one.mode & 0o7777,
        what,
    })?;
    match !has_content || content.sum.sum() == one.sum {
        true => Ok(()),
        false => Err(refused(&one.name, "is not what its checksum says")),
    }
}

/// What the directory lists, and where it begins.
fn list(file: &mut File, size: u64) -> Result<(Vec<Listed>, u64), UnpackError> {
    let (end, record) = end(file, size)?;
    let record = Fields(&record);
    let (count, length, start) = (record.short(10), record.long(12), record.long(16));
    let one_disk = (4..10).step_by(2).all(|at| match at {
        8 => record.short(at) == count,
        _ => record.short(at) == 0,
    });
    let (length, start) = (u64::from(length), u64::from(start));
    if !one_disk || start.checked_add(length) != Some(end) {
        return Err(broken("its directory is not at its end"));
    }
    if length > MAX_DIRECTORY || usize::from(count) > MAX_ENTRIES {
        return Err(UnpackError::TooMuch {
            most: MAX_ENTRIES.try_into().unwrap_or(u64::MAX),
            what: "files",
        });
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let directory = read(file, start, length)?;
    let mut rest = directory.as_slice();
    let mut listed = Vec::new();
    while !rest.is_empty() {
        let (one, used) = central(rest)?;
        listed.push(one);
        rest = rest.get(used..).unwrap_or_default();
    }
    match listed.len() == usize::from(count) {
        true => Ok((listed, start)),
        false => Err(broken("its directory has other files than it says")),
    }
}

/// The record at the end, of which there must be one only: a comment after it
/// could hold another that other readers take.
fn end(file: &mut File, size: u64) -> Result<(u64, Vec<u8>), UnpackError> {
    let least = u64::try_from(END).unwrap_or(u64::MAX);
    let looked_at = size.min(least.saturating_add(u16::MAX.into()));
    let from = size.saturating_sub(looked_at);
    let tail = read(file, from, usize::try_from(looked_at).unwrap_or_default())?;
    let mut found = tail.windows(END).enumerate().filter(|(at, window)| {
        let comment = usize::from(Fields(window).short(20));
        window.starts_with(b"PK\x05\x06") && at + END + comment == tail.len()
    });
    match (found.next(), found.next()) {
        (Some((at, record)), None) => {
            let at = from.saturating_add(at.try_into().unwrap_or(u64::MAX));
            Ok((at, record.to_vec()))
        }
        _ => Err(broken("it has no end, or two")),
    }
}

fn central(bytes: &[u8]) -> Result<(Listed, usize), UnpackError> {
    let wrong = || broken("its directory cannot be read");
    let fields = Fields(bytes);
    if bytes.len() < CENTRAL || !bytes.starts_with(b"PK\x01\x02") {
        return Err(wrong());
    }
    let name = usize::from(fields.short(28));
    let more = usize::from(fields.short(30)) + usize::from(fields.short(32));
    let used = CENTRAL + name + more;
    let name = bytes.get(CENTRAL..CENTRAL + name).ok_or_else(wrong)?;
    if used > bytes.len() {
        return Err(wrong());
    }
    // Permissions are there where the archive was made on such a system.
    let mode = match fields.short(4) >> 8 {
        3 | 19 => fields.long(38) >> 16,
        _ => 0,
    };
    let listed = Listed {
        name: name.to_vec(),
        mode,
        method: fields.short(10),
        sum: fields.long(16),
        packed: fields.long(20).into(),
        size: fields.long(24).into(),
        at: fields.long(42).into(),
    };
    if fields.short(8) & 0x2041 != 0 {
        return Err(refused(name, "is encrypted"));
    }
    let large = u64::from(u32::MAX);
    if [listed.packed, listed.size, listed.at].contains(&large) || fields.short(34) != 0 {
        return Err(refused(name, "is larger than such an archive should be"));
    }
    Ok((listed, used))
}

/// Where the content of an entry begins; its own header must agree.
fn find(file: &mut File, one: &Listed) -> Result<u64, UnpackError> {
    let header = read(file, one.at, LOCAL)?;
    let fields = Fields(&header);
    let name = usize::from(fields.short(26));
    let begins = u64::try_from(LOCAL + name + usize::from(fields.short(28)));
    let own = read(file, one.at.saturating_add(30), name)?;
    // Sizes may follow the content instead; then they are zero here.
    let later = fields.short(6) & 8 != 0;
    let same = |here: u32, there: u64| u64::from(here) == there || (later && here == 0);
    let agrees = header.starts_with(b"PK\x03\x04")
        && own == one.name
        && fields.short(8) == one.method
        && same(fields.long(14), one.sum.into())
        && same(fields.long(18), one.packed)
        && same(fields.long(22), one.size);
    match (agrees, begins) {
        (true, Ok(begins)) => Ok(one.at.saturating_add(begins)),
        _ => Err(refused(&one.name, "is described in two ways")),
    }
}

fn read(file: &mut File, at: u64, length: usize) -> Result<Vec<u8>, UnpackError> {
    file.seek(SeekFrom::Start(at))?;
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Numbers of a header, the lowest byte first.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn short(&self, at: usize) -> u16 {
        let bytes = self.0.get(at..).and_then(<[u8]>::first_chunk);
        u16::from_le_bytes(bytes.copied().unwrap_or_default())
    }

    fn long(&self, at: usize) -> u32 {
        let bytes = self.0.get(at..).and_then(<[u8]>::first_chunk);
        u32::from_le_bytes(bytes.copied().unwrap_or_default())
    }
}

/// Sums up what is read.
struct Summed<'a> {
    inner: &'a mut dyn Read,
    sum: Crc,
}

impl Read for Summed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.sum.update(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}

fn broken(what: &'static str) -> UnpackError {
    UnpackError::Broken { what }
}
