//! What projections and engines agree on: schemas, statements, cells.
//!
//! Data only. Folding is in `projection`, storing in the engines.

use std::borrow::Cow;

use fluffy_base::Digest;
use sha2::{Digest as _, Sha256};

use crate::event::Event;

/// The most rows one query may return.
pub const MAX_ROWS: usize = 10_000;

/// The tables of a view and the version of their shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schema {
    /// Raised with every change; a view of another version is rebuilt.
    pub version: u32,
    /// Statements that create the tables, in words both engines know.
    pub sql: &'static [&'static str],
    /// The tables, for comparing two copies.
    pub tables: &'static [&'static str],
}

/// One value in a view.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Cell {
    /// No value.
    Null,
    /// A whole number.
    Integer(i64),
    /// Text.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
}

impl Cell {
    /// The number, if it is one.
    #[must_use]
    pub const fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Integer(value) => Some(*value),
            _ => None,
        }
    }

    /// The text, if it is text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl From<i64> for Cell {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<u64> for Cell {
    fn from(value: u64) -> Self {
        // Positions and versions are safe JSON integers, far below this.
        Self::Integer(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// One change of a view, with `$1`, `$2` … for its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Statement {
    pub(crate) sql: Cow<'static, str>,
    pub(crate) params: Vec<Cell>,
}

/// The changes that one batch of events makes to a view.
///
/// Only collects: a fold can't read, so it can't depend on anything but the
/// events, and two rebuilds give equal bytes.
#[derive(Debug, Default)]
pub struct ViewTx {
    pub(crate) statements: Vec<Statement>,
}

impl ViewTx {
    /// Queues one statement, usually an upsert with `ON CONFLICT`.
    pub fn execute<const N: usize>(
        &mut self,
        sql: impl Into<Cow<'static, str>>,
        params: [Cell; N],
    ) {
        self.statements.push(Statement {
            sql: sql.into(),
            params: params.into(),
        });
    }
}

/// Why a projection can't go past an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The type, or this version of it, is not known.
    #[error("unknown event `{event_type}` version {version}")]
    UnknownEvent {
        /// The event's type.
        event_type: String,
        /// Its schema version.
        version: u32,
    },
    /// The payload lacks what this version must have.
    #[error("the payload of `{event_type}` does not fit its schema")]
    Payload {
        /// The event's type.
        event_type: String,
    },
}

impl ApplyError {
    /// The error for an event the projection does not know.
    #[must_use]
    pub fn unknown(event: &Event) -> Self {
        Self::UnknownEvent {
            event_type: event.event_type.clone(),
            version: event.event_version,
        }
    }

    /// The error for a payload that does not fit.
    #[must_use]
    pub fn payload(event: &Event) -> Self {
        Self::Payload {
            event_type: event.event_type.clone(),
        }
    }
}

/// The answer to a query on a view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The rows, each with one cell per column.
    pub rows: Vec<Vec<Cell>>,
    /// Whether there were more than [`MAX_ROWS`].
    pub truncated: bool,
    /// The last event that was in the view at that moment.
    pub applied_seq: u64,
}

/// Digests the tables of a view; both engines feed it cell by cell.
#[derive(Debug, Default)]
pub(crate) struct ViewDigest(Sha256);

impl ViewDigest {
    pub(crate) fn table(&mut self, name: &str) {
        self.bytes(b't', name.as_bytes());
    }

    pub(crate) fn row(&mut self) {
        self.0.update(b"r");
    }

    pub(crate) fn cell(&mut self, cell: &Cell) {
        match cell {
            Cell::Null => self.0.update(b"n"),
            Cell::Integer(value) => self.bytes(b'i', &value.to_be_bytes()),
            Cell::Text(text) => self.bytes(b's', text.as_bytes()),
            Cell::Blob(bytes) => self.bytes(b'b', bytes),
        }
    }

    pub(crate) fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }

    /// Tag and length first, so that no two lists of cells look alike.
    fn bytes(&mut self, tag: u8, bytes: &[u8]) {
        self.0.update([tag]);
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(rows: &[&[Cell]]) -> Digest {
        let mut digest = ViewDigest::default();
        digest.table("t");
        for row in rows {
            digest.row();
            row.iter().for_each(|cell| digest.cell(cell));
        }
        digest.finish()
    }

    #[test]
    fn views_that_differ_have_different_digests() {
        let one: &[Cell] = &["ab".into(), "c".into()];
        let other: &[Cell] = &["a".into(), "bc".into()];
        assert_eq!(digest(&[one]), digest(&[one]));
        assert_ne!(digest(&[one]), digest(&[other]));
        assert_ne!(digest(&[&[Cell::Null]]), digest(&[&["".into()]]));
        assert_ne!(digest(&[&[1i64.into()]]), digest(&[&["1".into()]]));
    }
}
