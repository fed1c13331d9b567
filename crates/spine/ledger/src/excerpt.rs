//! Excerpts: the events of one org as lines, each with its proof.
//!
//! First a header with one signed checkpoint and the key that signed it, then
//! an event a line with its way through the tree to that checkpoint, then a
//! line with their count. An excerpt proves that what is in it is in the
//! ledger, unaltered; that nothing was left out it can't prove. Reading and
//! checking is in `excerpt/check.rs`.

mod check;

use std::io::{self, Write};

use fluffy_base::id::LedgerId;
use fluffy_base::{Digest, canonical};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use check::{ExcerptOptions, ExcerptVerification, MAX_GAPS, VersionGap, verify_excerpt};

use crate::checkpoint::{self, ParseCheckpointError, SignedCheckpoint};
use crate::event::Event;
use crate::export::{ParseLineError, parse_line};
use crate::key::{ParsePublicKeyError, PublicKey};
use crate::row::RowRef;
use crate::tree;
use crate::verify::FindingKind;

/// What the header calls itself.
const KIND: &str = "fluffy-org-export";
/// The version of what is written.
const FORMAT: u32 = 1;
/// How an event's line begins, and what is between it and its path.
const EVENT: &str = "{\"event\":";
const PATH: &str = ",\"path\":";

/// One event with its way through the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvenEvent {
    /// The event.
    pub event: Event,
    /// The hashes beside the way from the event to the root.
    pub path: Vec<Digest>,
}

/// Why something is no event with a proof.
#[derive(Debug, thiserror::Error)]
pub enum ParseProvenError {
    /// Not an event and a path.
    #[error("it is not an event with a path")]
    Shape,
    /// The event can't be understood.
    #[error("the event can't be understood")]
    Event(#[from] ParseLineError),
}

impl ProvenEvent {
    /// An event as JSON, and its path.
    ///
    /// # Errors
    /// It is anything but what a ledger stores.
    pub fn from_json(event: &Value, path: Vec<Digest>) -> Result<Self, ParseProvenError> {
        let line = canonical::to_string(event).map_err(|_| ParseProvenError::Shape)?;
        let event = parse_line(&line)?;
        Ok(Self { event, path })
    }

    /// The event as JSON; in canonical form it gives the event's hash.
    #[must_use]
    pub fn event_json(&self) -> Value {
        // What was read from a row is JSON, or it does not fit its hash.
        serde_json::from_str(&self.event_line()).unwrap_or_default()
    }

    fn event_line(&self) -> String {
        let mut line = String::new();
        RowRef::of(&self.event).write_export(&mut line);
        line
    }

    /// Its line in an excerpt, without the newline.
    fn line(&self) -> String {
        let path: Vec<_> = self.path.iter().map(|hash| format!("\"{hash}\"")).collect();
        format!("{EVENT}{}{PATH}[{}]}}", self.event_line(), path.join(","))
    }

    /// Reads its line in an excerpt, which must be as it is written.
    ///
    /// # Errors
    /// The text is anything but what an excerpt has for that event.
    pub fn parse(text: &str) -> Result<Self, ParseProvenError> {
        // Hashes do not contain it, so the last one begins the path.
        let inner = text.strip_prefix(EVENT).and_then(|it| it.strip_suffix('}'));
        let (event, path) = inner
            .and_then(|it| it.rsplit_once(PATH))
            .ok_or(ParseProvenError::Shape)?;
        let read = Self {
            event: parse_line(event)?,
            path: serde_json::from_str(path).map_err(|_| ParseProvenError::Shape)?,
        };
        match read.line() == text {
            true => Ok(read),
            false => Err(ParseProvenError::Shape),
        }
    }

    /// Whether it is what its hash says, and its path leads to this root.
    #[must_use]
    pub(crate) fn leads_to(&self, (size, root): (u64, Digest)) -> bool {
        self.fault((size, root)).is_none()
    }

    /// What does not hold.
    fn fault(&self, tree: (u64, Digest)) -> Option<(FindingKind, &'static str)> {
        if !self.event.is_intact() {
            let detail = "the event's fields do not give its hash";
            return Some((FindingKind::HashMismatch, detail));
        }
        let index = self.event.seq.checked_sub(1);
        let leads = |index| tree::check_inclusion(&self.event.hash, index, tree, &self.path);
        let detail = "the path does not lead from the event to the checkpoint";
        (!index.is_some_and(leads)).then_some((FindingKind::NotProven, detail))
    }
}

/// What an excerpt is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt {
    /// The ledger.
    pub ledger_id: LedgerId,
    /// The org.
    pub org_id: String,
    /// Its events behind this one; 0 for all.
    pub after: u64,
    /// What they are proven against; they end with its last event.
    pub checkpoint: SignedCheckpoint,
    /// The key that signed it.
    pub key: PublicKey,
}

/// Why what a server said is not an excerpt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExcerptError {
    /// The checkpoint can't be understood.
    #[error("the checkpoint can't be understood")]
    Checkpoint(#[from] ParseCheckpointError),
    /// The key can't be understood.
    #[error("the key of the checkpoint can't be understood")]
    Key(#[from] ParsePublicKeyError),
    /// Somebody else signed it.
    #[error("the checkpoint is not signed by the key beside it")]
    Signature,
    /// It is of another ledger.
    #[error("the checkpoint is of `{0}`, which is another ledger")]
    OtherLedger(String),
    /// It has fewer events than the excerpt begins behind.
    #[error("there is no event {0} in the checkpoint")]
    After(u64),
}

/// The header as JSON; the fields stand in the canonical order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderLine {
    after: u64,
    checkpoint: String,
    format: u32,
    key: String,
    kind: String,
    ledger_id: LedgerId,
    org_id: String,
    through: u64,
}

/// The last line as JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndLine {
    end: End,
}

/// What the last line says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    events: u64,
    last_seq: u64,
}

impl Excerpt {
    /// Whether the checkpoint is of this ledger, covers where it begins and is
    /// signed by its key; whose key that is, is for others to say.
    ///
    /// # Errors
    /// What does not hold.
    pub fn check(&self) -> Result<(), ExcerptError> {
        let signed = &self.checkpoint.checkpoint;
        if signed.origin != checkpoint::origin(self.ledger_id) {
            return Err(ExcerptError::OtherLedger(signed.origin.clone()));
        }
        if !self.checkpoint.is_signed_by(&self.key) {
            return Err(ExcerptError::Signature);
        }
        match self.after > signed.size {
            true => Err(ExcerptError::After(self.after)),
            false => Ok(()),
        }
    }

    fn tree(&self) -> (u64, Digest) {
        let signed = &self.checkpoint.checkpoint;
        (signed.size, signed.root)
    }

    /// What is wrong with the next event behind `last`.
    fn fault(&self, last: u64, next: &ProvenEvent) -> Option<(FindingKind, String)> {
        let event = &next.event;
        if event.seq <= last {
            let detail = format!("it stands behind event {last}");
            return Some((FindingKind::Duplicate, detail));
        }
        if let Some((kind, detail)) = next.fault(self.tree()) {
            return Some((kind, detail.to_owned()));
        }
        let org = event.scope.org_id.as_deref();
        (org != Some(&*self.org_id)).then(|| {
            let whose = org.unwrap_or("none");
            let detail = format!("it is of the org `{whose}`, not of `{}`", self.org_id);
            (FindingKind::ForeignOrg, detail)
        })
    }

    fn line(&self) -> Result<String, io::Error> {
        let line = HeaderLine {
            after: self.after,
            checkpoint: self.checkpoint.to_string(),
            format: FORMAT,
            key: self.key.to_string(),
            kind: KIND.to_owned(),
            ledger_id: self.ledger_id,
            org_id: self.org_id.clone(),
            through: self.checkpoint.checkpoint.size,
        };
        Ok(serde_json::to_string(&line)?)
    }

    /// Reads a header, which must be as it is written; what it says is not
    /// checked.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let line: HeaderLine = serde_json::from_str(text).ok()?;
        if line.kind != KIND || line.format != FORMAT {
            return None;
        }
        let excerpt = Self {
            ledger_id: line.ledger_id,
            org_id: line.org_id,
            after: line.after,
            checkpoint: SignedCheckpoint::parse(&line.checkpoint).ok()?,
            key: line.key.parse().ok()?,
        };
        (excerpt.line().ok()? == text).then_some(excerpt)
    }
}

/// Why an excerpt could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteExcerptError {
    /// The output can't be written.
    #[error("the export can't be written")]
    Write(#[from] io::Error),
    /// What is to be written proves nothing.
    #[error("event {seq} does not belong there: {detail}")]
    Unfit {
        /// The event.
        seq: u64,
        /// What does not hold.
        detail: String,
    },
    /// The checkpoint does not hold.
    #[error("the checkpoint does not hold")]
    Excerpt(#[from] ExcerptError),
}

/// Writes an excerpt, and nothing into it that does not hold.
#[derive(Debug)]
pub struct ExcerptWriter<W> {
    out: W,
    of: Excerpt,
    end: End,
}

impl<W: Write> ExcerptWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// The checkpoint does not hold, or the output fails.
    pub fn start(mut out: W, of: Excerpt) -> Result<Self, WriteExcerptError> {
        of.check()?;
        writeln!(out, "{}", of.line()?)?;
        let end = End {
            events: 0,
            last_seq: of.after,
        };
        Ok(Self { out, of, end })
    }

    /// Writes the next event.
    ///
    /// # Errors
    /// It is not the next one of the org, its proof does not lead to the
    /// checkpoint, or the output fails.
    pub fn event(&mut self, next: &ProvenEvent) -> Result<(), WriteExcerptError> {
        let seq = next.event.seq;
        if let Some((_, detail)) = self.of.fault(self.end.last_seq, next) {
            return Err(WriteExcerptError::Unfit { seq, detail });
        }
        writeln!(self.out, "{}", next.line())?;
        self.end = End {
            events: self.end.events + 1,
            last_seq: seq,
        };
        Ok(())
    }

    /// How many events were written.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.end.events
    }

    /// Writes the last line; gives the output back, and the last event.
    ///
    /// # Errors
    /// The output fails.
    pub fn end(mut self) -> Result<(W, u64), WriteExcerptError> {
        let line = serde_json::to_string(&EndLine { end: self.end }).map_err(io::Error::from)?;
        writeln!(self.out, "{line}")?;
        self.out.flush()?;
        Ok((self.out, self.end.last_seq))
    }
}
