//! Writes tar archives as POSIX has them, the same bytes every time.

use std::io::{self, Write};

const BLOCK: usize = 512;

/// The longest name that fits into a header.
const SHORT: usize = 100;

/// An archive that grows.
pub(super) struct Archive<W> {
    out: W,
}

/// What an entry is, as a header says it.
#[derive(Clone, Copy)]
enum Kind {
    File {
        runs: bool,
    },
    Folder,
    Link,
    /// Records about the next entry.
    Records,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out }
    }

    /// Adds a folder; its name ends with a slash.
    pub(super) fn folder(&mut self, name: &[u8]) -> io::Result<()> {
        self.entry(Kind::Folder, name, b"", 0)
    }

    pub(super) fn link(&mut self, name: &[u8], target: &[u8]) -> io::Result<()> {
        self.entry(Kind::Link, name, target, 0)
    }

    /// Begins a file; its content follows, and then what fills the block.
    pub(super) fn file(&mut self, name: &[u8], size: u64, runs: bool) -> io::Result<()> {
        self.entry(Kind::File { runs }, name, b"", size)
    }

    pub(super) fn content(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    /// Fills the block after that much content.
    pub(super) fn pad(&mut self, size: u64) -> io::Result<()> {
        let rest = usize::try_from(size % BLOCK as u64).unwrap_or_default();
        let missing = rest.next_multiple_of(BLOCK) - rest;
        self.out
            .write_all([0; BLOCK].get(..missing).unwrap_or_default())
    }

    /// Ends the archive; gives what it was written to.
    pub(super) fn end(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        Ok(self.out)
    }

    fn entry(&mut self, kind: Kind, name: &[u8], target: &[u8], size: u64) -> io::Result<()> {
        let mut records = Vec::new();
        for (key, value) in [("path", name), ("linkpath", target)] {
            if value.len() > SHORT {
                records.extend(record(key, value));
            }
        }
        if !records.is_empty() {
            let size = records.len() as u64;
            self.out
                .write_all(&header(Kind::Records, b"records", b"", size))?;
            self.out.write_all(&records)?;
            self.pad(size)?;
        }
        self.out.write_all(&header(kind, name, target, size))
    }
}

/// One record; its length counts itself.
fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length.to_string().len() + rest != length {
        length = length.to_string().len() + rest;
    }
    let mut record = format!("{length} {key}=").into_bytes();
    record.extend(value);
    record.push(b'\n');
    record
}

fn header(kind: Kind, name: &[u8], target: &[u8], size: u64) -> [u8; BLOCK] {
    let (flag, mode) = match kind {
        Kind::File { runs: false } => (b'0', 0o644),
        Kind::File { runs: true } => (b'0', 0o755),
        Kind::Folder => (b'5', 0o755),
        Kind::Link => (b'2', 0o777),
        Kind::Records => (b'x', 0o644),
    };
    let mut header = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8], most: usize| {
        let places = header.iter_mut().skip(at).take(most);
        for (place, byte) in places.zip(bytes) {
            *place = *byte;
        }
    };
    put(0, name, SHORT);
    put(100, format!("{mode:07o}").as_bytes(), 7);
    put(108, b"0000000", 7);
    put(116, b"0000000", 7);
    put(124, format!("{size:011o}").as_bytes(), 11);
    put(136, b"00000000000", 11);
    // The sum is counted with blanks in its place.
    put(148, b"        ", 8);
    put(156, &[flag], 1);
    put(157, target, SHORT);
    put(257, b"ustar\x0000", 8);
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    let sum = format!("{sum:06o}\0 ");
    for (place, byte) in header.iter_mut().skip(148).zip(sum.as_bytes()) {
        *place = *byte;
    }
    header
}
