//! Reading an export back, one bounded line at a time.
//!
//! Trusts nothing: a line is only taken if writing it again gives the very
//! same bytes. Whether the chain holds is for `verify` to say.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use fluffy_base::canonical::{self, CanonicalError};
use fluffy_base::{Digest, Timestamp};
use serde::Deserialize;
use serde_json::Value;

use super::{EndLine, Header, HeaderLine, MAX_LINE};
use crate::event::{Actor, ActorKind, Aggregate, Domain, Event, Payload, Scope};
use crate::row::RowRef;

/// The first bytes of a zstd frame.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// An export, read event by event.
pub struct ExportReader {
    lines: Lines,
    header: Header,
    end: Option<EndLine>,
}

/// The lines of a text, each bounded, in one buffer.
pub(crate) struct Lines {
    input: Box<dyn BufRead>,
    /// How many have been read.
    number: u64,
    text: Vec<u8>,
}

/// Why an export can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadExportError {
    /// The file can't be read.
    #[error("the export `{}` can't be read", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The first line is not a header of a known format.
    #[error("the file does not start with the header of an export")]
    Header,
    /// A line can't be understood.
    #[error("line {line} of the export can't be understood")]
    Line {
        /// Which one, from 1.
        line: u64,
        /// Why not.
        #[source]
        source: ParseLineError,
    },
    /// The input failed in the middle, or its compression is damaged.
    #[error("the export can't be read after line {line}")]
    Cut {
        /// The last good line.
        line: u64,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// Why a line is not an event of an export.
#[derive(Debug, thiserror::Error)]
pub enum ParseLineError {
    /// Longer than any event.
    #[error("the line is longer than {MAX_LINE} bytes")]
    TooLong,
    /// Not the JSON of an event.
    #[error("the line is not an event")]
    Json(#[source] serde_json::Error),
    /// The payload has no canonical form.
    #[error("the payload has no canonical form")]
    Payload(#[source] CanonicalError),
    /// The same event would be written in other bytes.
    #[error("the line is not canonical")]
    NotCanonical,
    /// Something stands after the end line.
    #[error("the line stands after the end of the export")]
    AfterEnd,
}

/// The fields of an event line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventLine {
    actor: ActorLine,
    aggregate_id: String,
    aggregate_type: String,
    aggregate_version: u64,
    app_id: Option<String>,
    causation_seq: Option<u64>,
    correlation_id: Option<String>,
    decision_seq: Option<u64>,
    domain: Domain,
    env_id: Option<String>,
    event_type: String,
    event_version: u32,
    hash: Digest,
    idempotency_key: Option<String>,
    occurred_at: Timestamp,
    org_id: Option<String>,
    payload: Value,
    prev_hash: Digest,
    request_id: String,
    seq: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ActorLine {
    id: String,
    on_behalf_of: Option<String>,
    #[serde(rename = "type")]
    kind: ActorKind,
}

/// Reads one event from its line, without the newline.
///
/// # Errors
/// The text is anything but what an export writes for that event.
pub fn parse_line(text: &str) -> Result<Event, ParseLineError> {
    if text.len() > MAX_LINE {
        return Err(ParseLineError::TooLong);
    }
    let line: EventLine = serde_json::from_str(text).map_err(ParseLineError::Json)?;
    let payload = canonical::to_string(&line.payload).map_err(ParseLineError::Payload)?;
    let event = Event {
        seq: line.seq,
        domain: line.domain,
        aggregate: Aggregate::new(line.aggregate_type, line.aggregate_id),
        aggregate_version: line.aggregate_version,
        event_type: line.event_type,
        event_version: line.event_version,
        occurred_at: line.occurred_at,
        actor: Actor {
            kind: line.actor.kind,
            id: line.actor.id,
            on_behalf_of: line.actor.on_behalf_of,
        },
        scope: Scope {
            org_id: line.org_id,
            app_id: line.app_id,
            env_id: line.env_id,
        },
        request_id: line.request_id,
        idempotency_key: line.idempotency_key,
        correlation_id: line.correlation_id,
        causation_seq: line.causation_seq,
        decision_seq: line.decision_seq,
        payload: Payload::from_canonical(payload),
        prev_hash: line.prev_hash,
        hash: line.hash,
    };
    // Duplicate keys, spaces, `null` for absent: none of it comes out again.
    let mut again = String::with_capacity(text.len());
    RowRef::of(&event).write_export(&mut again);
    if again != text {
        return Err(ParseLineError::NotCanonical);
    }
    Ok(event)
}

/// Reads the header from its line, without the newline.
#[must_use]
pub fn parse_header(text: &str) -> Option<Header> {
    if text.len() > MAX_LINE {
        return None;
    }
    let line: HeaderLine = serde_json::from_str(text).ok()?;
    let again = serde_json::to_string(&line).ok()?;
    line.header().filter(|_| again == text)
}

impl ExportReader {
    /// Opens an export, plain or compressed, and reads its header.
    ///
    /// # Errors
    /// The file can't be read or is not an export.
    pub fn open(path: &Path) -> Result<Self, ReadExportError> {
        Self::start(Lines::open(path)?)
    }

    /// Reads the header from plain text.
    ///
    /// # Errors
    /// The text does not start with the header of an export.
    pub fn read(input: Box<dyn BufRead>) -> Result<Self, ReadExportError> {
        Self::start(Lines::new(input))
    }

    fn start(mut lines: Lines) -> Result<Self, ReadExportError> {
        let first = lines.next().map_err(|_| ReadExportError::Header)?;
        let header = first
            .and_then(parse_header)
            .ok_or(ReadExportError::Header)?;
        Ok(Self {
            lines,
            header,
            end: None,
        })
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The next event; none at the end line or the end of the file.
    ///
    /// # Errors
    /// The next line is no event, or can't be read.
    pub fn next_event(&mut self) -> Result<Option<Event>, ReadExportError> {
        loop {
            let line = self.lines.number + 1;
            let bad = |source| ReadExportError::Line { line, source };
            let Some(text) = self.lines.next()? else {
                return Ok(None);
            };
            if self.end.is_some() {
                return Err(bad(ParseLineError::AfterEnd));
            }
            match parse_end(text) {
                // What follows the end line is an error, so look once more.
                Some(end) => self.end = Some(end),
                None => return parse_line(text).map(Some).map_err(bad),
            }
        }
    }

    /// Passes over the events before a position, without looking at them.
    ///
    /// # Errors
    /// A line of them can't be read.
    pub(crate) fn skip_to(&mut self, seq: u64) -> Result<(), ReadExportError> {
        // The first line is the header, and each after it the next event.
        while self.header.starts_after() + self.lines.number < seq {
            if self.lines.next()?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// The count, the last position and the last hash the end line states;
    /// none before it was reached or if there is none.
    #[must_use]
    pub fn end(&self) -> Option<(u64, u64, Digest)> {
        let line = self.end.as_ref()?;
        Some((line.end.events, line.end.last_seq, line.end.last_hash))
    }

    /// The checkpoint of the end line, without looking at the events between.
    pub(crate) fn skip_to_checkpoint(mut self) -> Option<String> {
        let mut end = None;
        while let Ok(Some(line)) = self.lines.next() {
            end = parse_end(line);
        }
        end?.checkpoint
    }

    /// The checkpoint of the end line, once it was reached.
    #[must_use]
    pub fn checkpoint(&self) -> Option<&str> {
        self.end.as_ref()?.checkpoint.as_deref()
    }
}

impl Lines {
    fn new(input: Box<dyn BufRead>) -> Self {
        Self {
            input,
            number: 0,
            text: Vec::new(),
        }
    }

    /// The lines of a file, plain or compressed.
    pub(crate) fn open(path: &Path) -> Result<Self, ReadExportError> {
        let failed = |source| ReadExportError::Io {
            path: path.to_owned(),
            source,
        };
        let mut file = File::open(path).map_err(failed)?;
        let mut magic = Vec::new();
        file.by_ref()
            .take(4)
            .read_to_end(&mut magic)
            .map_err(failed)?;
        file.rewind().map_err(failed)?;
        let input: Box<dyn BufRead> = if magic == ZSTD_MAGIC {
            Box::new(BufReader::new(zstd::Decoder::new(file).map_err(failed)?))
        } else {
            Box::new(BufReader::new(file))
        };
        Ok(Self::new(input))
    }

    /// How many lines were read.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// The next line without its newline; none at the end.
    pub(crate) fn next(&mut self) -> Result<Option<&str>, ReadExportError> {
        self.text.clear();
        let number = self.number;
        let limit = MAX_LINE as u64 + 1;
        let read = self
            .input
            .by_ref()
            .take(limit)
            .read_until(b'\n', &mut self.text);
        if read.map_err(|source| ReadExportError::Cut {
            line: number,
            source,
        })? == 0
        {
            return Ok(None);
        }
        self.number += 1;
        let bad = |source| ReadExportError::Line {
            line: number + 1,
            source,
        };
        let line = match self.text.strip_suffix(b"\n") {
            Some(line) => line,
            None if self.text.len() > MAX_LINE => return Err(bad(ParseLineError::TooLong)),
            // A last line without its newline was cut off.
            None => return Err(bad(ParseLineError::NotCanonical)),
        };
        match std::str::from_utf8(line) {
            Ok(line) => Ok(Some(line)),
            Err(_) => Err(bad(ParseLineError::NotCanonical)),
        }
    }
}

impl std::fmt::Debug for ExportReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExportReader")
            .field("header", &self.header)
            .field("lines_read", &self.lines.number)
            .finish_non_exhaustive()
    }
}

fn parse_end(text: &str) -> Option<EndLine> {
    // Events start with their actor, so most lines need no second look.
    if !text.starts_with("{\"checkpoint\"") && !text.starts_with("{\"end\"") {
        return None;
    }
    let line: EndLine = serde_json::from_str(text).ok()?;
    let again = serde_json::to_string(&line).ok()?;
    (again == text).then_some(line)
}
