//! Exports: a ledger, or a part of it, as JSON Lines, plain or zstd.
//!
//! First a header that says which chain and where in it, then one event per
//! line in canonical JSON, then an end line with the count, the last hash and
//! the newest checkpoint. An export proves nothing by itself: `verify` checks
//! it as it checks a ledger. Reading is in `export/read.rs`.

mod read;

use std::io::{self, Write};
use std::ops::ControlFlow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fluffy_base::id::LedgerId;
use fluffy_base::{Digest, Timestamp, canonical};
use serde::{Deserialize, Serialize};

pub(crate) use read::Lines;
pub use read::{ExportReader, ParseLineError, ReadExportError, parse_header, parse_line};

use crate::chain::{FORMAT, Genesis, Head};
use crate::checkpoint::SignedCheckpoint;
use crate::engine::RowFault;
use crate::error::StoreError;
use crate::ledger::Ledger;
use crate::row::RowRef;
use crate::tree::Frontier;

/// What the header calls itself.
const KIND: &str = "fluffy-ledger-export";
/// The longest line that is read or written.
pub const MAX_LINE: usize = 512 * 1024;
/// What zstd was made for: text that repeats itself.
pub(crate) const ZSTD_LEVEL: i32 = 3;

/// How an export is written.
#[derive(Debug, Clone, Default)]
pub struct ExportOptions {
    /// Whether it is compressed.
    pub compression: Compression,
    /// The checkpoint to end with, if checkpoints are signed.
    pub checkpoint: Option<SignedCheckpoint>,
}

/// Whether an export is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Plain text.
    #[default]
    Plain,
    /// One zstd frame.
    Zstd,
}

/// What was exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exported {
    /// How many events.
    pub events: u64,
    /// The position of the last one; that before the first if there is none.
    pub last_seq: u64,
    /// The hash of the last one.
    pub last_hash: Digest,
}

/// Why an export could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The ledger can't be read.
    #[error("the ledger can't be read")]
    Store(#[from] StoreError),
    /// The output can't be written.
    #[error("the export can't be written")]
    Write(#[from] io::Error),
}

impl Ledger {
    /// Writes everything that has not been archived away, streaming.
    ///
    /// # Errors
    /// An event is missing or malformed, or the output fails; what was
    /// written so far then has no end line and does not verify.
    pub fn export(
        &self,
        out: &mut dyn Write,
        options: &ExportOptions,
    ) -> Result<Exported, ExportError> {
        match options.compression {
            Compression::Plain => self.export_lines(&mut io::BufWriter::new(out), options),
            Compression::Zstd => {
                let mut encoder = zstd::Encoder::new(out, ZSTD_LEVEL)?;
                encoder.include_checksum(true)?;
                let exported = self.export_lines(&mut encoder, options)?;
                encoder.finish()?.flush()?;
                Ok(exported)
            }
        }
    }

    fn export_lines(
        &self,
        out: &mut dyn Write,
        options: &ExportOptions,
    ) -> Result<Exported, ExportError> {
        let engine = &self.shared.engine;
        let genesis = engine.genesis();
        let start = match engine.anchor()? {
            Some(anchor) => anchor.head,
            None => Head::empty(&genesis),
        };
        let mut writer = ExportWriter::start(out, &genesis, &start)?;
        let mut failed = None;
        engine.scan(start.seq + 1, &mut |row| match row
            .map_err(ExportError::from)
            .and_then(|row| writer.row(&row))
        {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        match failed {
            Some(error) => Err(error),
            None => writer.end(options.checkpoint.as_ref()),
        }
    }
}

impl From<RowFault> for ExportError {
    fn from(RowFault { seq, column }: RowFault) -> Self {
        Self::Store(StoreError::Malformed { seq, column })
    }
}

/// Writes one export line by line.
pub(crate) struct ExportWriter<'o> {
    out: &'o mut dyn Write,
    line: String,
    exported: Exported,
}

impl<'o> ExportWriter<'o> {
    /// Writes the header; `start` is the chain's end before the first event.
    pub(crate) fn start(
        out: &'o mut dyn Write,
        genesis: &Genesis,
        start: &Head,
    ) -> Result<Self, ExportError> {
        let mut line = json_line(&HeaderLine::new(genesis, start))?;
        line.push('\n');
        out.write_all(line.as_bytes())?;
        Ok(Self {
            out,
            line,
            exported: Exported {
                events: 0,
                last_seq: start.seq,
                last_hash: start.hash,
            },
        })
    }

    /// Writes the next event.
    pub(crate) fn row(&mut self, row: &RowRef<'_>) -> Result<(), ExportError> {
        let expected = self.exported.last_seq + 1;
        if row.seq != expected {
            return Err(StoreError::SequenceGap { seq: expected }.into());
        }
        self.line.clear();
        row.write_export(&mut self.line);
        self.line.push('\n');
        self.out.write_all(self.line.as_bytes())?;
        self.exported = Exported {
            events: self.exported.events + 1,
            last_seq: row.seq,
            last_hash: row.hash,
        };
        Ok(())
    }

    /// Writes the end line.
    pub(crate) fn end(
        self,
        checkpoint: Option<&SignedCheckpoint>,
    ) -> Result<Exported, ExportError> {
        let end = EndLine {
            checkpoint: checkpoint.map(ToString::to_string),
            end: End {
                events: self.exported.events,
                last_hash: self.exported.last_hash,
                last_seq: self.exported.last_seq,
            },
        };
        let mut line = json_line(&end)?;
        line.push('\n');
        self.out.write_all(line.as_bytes())?;
        self.out.flush()?;
        Ok(self.exported)
    }
}

/// The first line: which chain, and where in it the export starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The record the chain started from.
    pub genesis: Genesis,
    /// The chain's end just before the first event.
    pub(crate) start: Head,
}

impl Header {
    /// The position before the first event: 0 for a whole ledger.
    #[must_use]
    pub const fn starts_after(&self) -> u64 {
        self.start.seq
    }
}

/// The header as JSON; the fields stand in the canonical order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderLine {
    created_at: Timestamp,
    format: u32,
    kind: String,
    ledger_id: LedgerId,
    start: StartLine,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StartLine {
    epoch: u64,
    frontier: String,
    hash: Digest,
    seq: u64,
}

/// The last line as JSON; the fields stand in the canonical order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndLine {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checkpoint: Option<String>,
    end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    events: u64,
    last_hash: Digest,
    last_seq: u64,
}

impl HeaderLine {
    fn new(genesis: &Genesis, start: &Head) -> Self {
        Self {
            created_at: genesis.created_at,
            format: FORMAT,
            kind: KIND.to_owned(),
            ledger_id: genesis.ledger_id,
            start: StartLine {
                epoch: start.epoch,
                frontier: STANDARD.encode(start.frontier.to_bytes()),
                hash: start.hash,
                seq: start.seq,
            },
        }
    }

    fn header(self) -> Option<Header> {
        let StartLine {
            epoch,
            frontier,
            hash,
            seq,
        } = self.start;
        let frontier = Frontier::from_bytes(seq, &STANDARD.decode(frontier).ok()?)?;
        let known = self.kind == KIND
            && self.format == FORMAT
            && seq.max(epoch) <= canonical::MAX_SAFE_INTEGER;
        known.then_some(Header {
            genesis: Genesis {
                ledger_id: self.ledger_id,
                created_at: self.created_at,
            },
            start: Head {
                seq,
                hash,
                epoch,
                frontier,
            },
        })
    }
}

fn json_line(value: &impl Serialize) -> Result<String, ExportError> {
    // Only a map with keys that are not text can fail; there is none here.
    serde_json::to_string(value).map_err(|error| ExportError::Write(error.into()))
}
