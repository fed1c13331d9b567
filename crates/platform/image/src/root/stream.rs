//! The bytes of a layer: unpacked, counted and hashed as they pass.

use std::cell::Cell;
use std::io::{self, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use fluffy_base::Digest;
use fluffy_base::digest::Hasher;

use super::RootLimits;
use crate::document::Compression;

/// What there can be too much of.
pub(super) const BYTES: &str = "bytes, unpacked,";
const EXPANSION: &str = "bytes in each byte that is stored";

/// How much is read at once.
const PIECE: usize = 128 << 10;

/// A layer, unpacked.
pub(super) struct Stream<R: Read> {
    unpacked: Unpacked<Counted<R>>,
    stored: Rc<Cell<u64>>,
    hasher: Hasher,
    passed: u64,
    limits: RootLimits,
    left: u64,
    limit_met: Option<&'static str>,
}

/// The ways in which layers are packed.
enum Unpacked<R: Read> {
    Not(BufReader<R>),
    Gzip(Box<MultiGzDecoder<BufReader<R>>>),
    Zstd(Box<zstd::Decoder<'static, BufReader<R>>>),
    /// One that could not even begin.
    Failed(Option<io::Error>),
}

impl<R: Read> Stream<R> {
    /// A layer of which `left` bytes may come.
    pub(super) fn new(bytes: R, compression: Compression, left: u64, limits: &RootLimits) -> Self {
        let stored = Rc::new(Cell::new(0));
        let counted = Counted {
            bytes,
            count: Rc::clone(&stored),
        };
        let buffered = BufReader::with_capacity(PIECE, counted);
        let unpacked = match compression {
            Compression::None => Unpacked::Not(buffered),
            Compression::Gzip => Unpacked::Gzip(Box::new(MultiGzDecoder::new(buffered))),
            Compression::Zstd => match zstd::Decoder::with_buffer(buffered) {
                Ok(decoder) => Unpacked::Zstd(Box::new(decoder)),
                Err(error) => Unpacked::Failed(Some(error)),
            },
        };
        Self {
            unpacked,
            stored,
            hasher: Hasher::new(),
            passed: 0,
            limits: *limits,
            left,
            limit_met: None,
        }
    }

    /// What there was too much of.
    pub(super) const fn limit_met(&self) -> Option<&'static str> {
        self.limit_met
    }

    pub(super) fn skip(&mut self, bytes: u64) -> io::Result<()> {
        let skipped = io::copy(&mut self.take(bytes), &mut io::sink())?;
        match skipped == bytes {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Reads what follows the end of the archive, which is nothing.
    pub(super) fn drain(&mut self) -> io::Result<()> {
        let mut piece = vec![0; PIECE];
        loop {
            let read = self.read(&mut piece)?;
            let piece = piece.get(..read).unwrap_or_default();
            if piece.is_empty() {
                return Ok(());
            }
            if piece.iter().any(|byte| *byte != 0) {
                let what = "something follows the end of the archive";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
    }

    /// How much it was, and its digest.
    pub(super) fn finish(self) -> (u64, Digest) {
        (self.passed, self.hasher.finish())
    }

    /// Whether what passed is still within the limits.
    fn judge(&mut self) -> io::Result<()> {
        let most = self.stored.get().saturating_mul(self.limits.expansion);
        let met = match () {
            () if self.passed > self.left => Some(BYTES),
            () if self.passed > self.limits.unasked && self.passed > most => Some(EXPANSION),
            () => None,
        };
        self.limit_met = met;
        match met {
            Some(what) => Err(io::Error::new(io::ErrorKind::QuotaExceeded, what)),
            None => Ok(()),
        }
    }
}

impl<R: Read> Read for Stream<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.unpacked {
            Unpacked::Not(stream) => stream.read(buffer)?,
            Unpacked::Gzip(stream) => stream.read(buffer)?,
            Unpacked::Zstd(stream) => stream.read(buffer)?,
            Unpacked::Failed(error) => {
                let error = error.take();
                return Err(error.unwrap_or_else(|| io::ErrorKind::InvalidData.into()));
            }
        };
        self.hasher.update(buffer.get(..read).unwrap_or_default());
        self.passed += u64::try_from(read).unwrap_or(u64::MAX);
        self.judge()?;
        Ok(read)
    }
}

/// Counts what is stored.
struct Counted<R> {
    bytes: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.bytes.read(buffer)?;
        let count = self.count.get() + u64::try_from(read).unwrap_or(u64::MAX);
        self.count.set(count);
        Ok(read)
    }
}
