//! The bytes of a layer: unpacked, counted and hashed as they pass.
//!
//! Unpacking can be done ahead, on a thread of its own, by so many pieces and
//! no more: a bomb is seen before much of it is there.

use std::cell::Cell;
use std::io::{self, BufReader, Read};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

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

/// How much is unpacked ahead: so many pieces, each of this size.
const AHEAD: usize = 8;
const AHEAD_PIECE: usize = 256 << 10;

/// Where unpacked bytes come from.
pub(crate) trait Unpack: Read {
    /// How many bytes as they are stored it took so far.
    fn stored(&self) -> u64;
}

/// A layer, unpacked.
pub(super) struct Stream<U> {
    unpacked: U,
    hasher: Hasher,
    passed: u64,
    limits: RootLimits,
    left: u64,
    limit_met: Option<&'static str>,
}

/// A layer that is unpacked as it is read.
pub(crate) struct Unpacking<R: Read> {
    unpacked: Unpacked<Counted<R>>,
    stored: Rc<Cell<u64>>,
}

/// The ways in which layers are packed.
enum Unpacked<R: Read> {
    Not(BufReader<R>),
    Gzip(Box<MultiGzDecoder<BufReader<R>>>),
    Zstd(Box<zstd::Decoder<'static, BufReader<R>>>),
    /// One that could not even begin.
    Failed(Option<io::Error>),
}

impl<R: Read> Unpacking<R> {
    pub(crate) fn new(bytes: R, compression: Compression) -> Self {
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
        Self { unpacked, stored }
    }
}

impl<R: Read> Read for Unpacking<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.unpacked {
            Unpacked::Not(stream) => stream.read(buffer),
            Unpacked::Gzip(stream) => stream.read(buffer),
            Unpacked::Zstd(stream) => stream.read(buffer),
            Unpacked::Failed(error) => {
                let error = error.take();
                Err(error.unwrap_or_else(|| io::ErrorKind::InvalidData.into()))
            }
        }
    }
}

impl<R: Read> Unpack for Unpacking<R> {
    fn stored(&self) -> u64 {
        self.stored.get()
    }
}

/// A layer that another thread unpacks.
pub(crate) struct Ahead {
    pieces: Receiver<io::Result<AheadPiece>>,
    piece: AheadPiece,
    at: usize,
}

/// Some bytes, and how many there were as they are stored until then.
#[derive(Default)]
struct AheadPiece {
    bytes: Vec<u8>,
    stored: u64,
}

/// The other end of an [`Ahead`].
pub(crate) struct AheadEnd(SyncSender<io::Result<AheadPiece>>);

impl Ahead {
    pub(crate) fn new() -> (AheadEnd, Self) {
        let (sender, pieces) = sync_channel(AHEAD);
        let ahead = Self {
            pieces,
            piece: AheadPiece::default(),
            at: 0,
        };
        (AheadEnd(sender), ahead)
    }
}

impl AheadEnd {
    /// Unpacks a layer until its end, or until nobody wants the rest.
    pub(crate) fn unpack<R: Read>(self, mut layer: Unpacking<R>) {
        loop {
            let mut bytes = vec![0; AHEAD_PIECE];
            let mut filled = 0;
            // Whole pieces cost less than many small ones.
            let ended = loop {
                match layer.read(bytes.get_mut(filled..).unwrap_or_default()) {
                    Ok(0) => break Ok(filled < AHEAD_PIECE),
                    Ok(read) => filled += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => break Err(error),
                }
            };
            bytes.truncate(filled);
            let stored = layer.stored();
            let told = self.0.send(Ok(AheadPiece { bytes, stored }));
            match (told, ended) {
                (Ok(()), Ok(false)) => {}
                (Ok(()), Ok(true)) => {
                    // Nothing is the end; what breaks off has none.
                    let _ = self.0.send(Ok(AheadPiece {
                        bytes: Vec::new(),
                        stored,
                    }));
                    return;
                }
                (Ok(()), Err(error)) => {
                    let _ = self.0.send(Err(error));
                    return;
                }
                (Err(_), _) => return,
            }
        }
    }
}

impl Read for Ahead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.piece.bytes.len() {
            // A thread that is gone did not say that this is the end.
            let next = self.pieces.recv().map_err(|_| io::ErrorKind::UnexpectedEof);
            self.piece = next??;
            self.at = 0;
            if self.piece.bytes.is_empty() {
                return Ok(0);
            }
        }
        let rest = self.piece.bytes.get(self.at..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        let from = rest.get(..count).unwrap_or_default();
        buffer
            .get_mut(..count)
            .unwrap_or_default()
            .copy_from_slice(from);
        self.at += count;
        Ok(count)
    }
}

impl Unpack for Ahead {
    fn stored(&self) -> u64 {
        self.piece.stored
    }
}

impl<U: Unpack> Stream<U> {
    /// A layer of which `left` bytes may come.
    pub(super) fn new(unpacked: U, left: u64, limits: &RootLimits) -> Self {
        Self {
            unpacked,
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
        let stored = self.unpacked.stored();
        let most = stored.saturating_mul(self.limits.expansion);
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

impl<U: Unpack> Read for Stream<U> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.unpacked.read(buffer)?;
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
