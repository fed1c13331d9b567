//! What verification can find wrong, and at which event.
//!
//! Data only; `walk` and `witness` decide.

use std::fmt;

use serde::Serialize;

/// The first thing that is wrong with a ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The first event that is wrong, missing, or can't be trusted.
    pub seq: u64,
    /// What kind of wrong.
    pub kind: FindingKind,
    /// What was seen, for people.
    pub detail: String,
}

/// The kinds of wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// The event's columns do not give its hash.
    HashMismatch,
    /// The event is not there, but later ones are.
    Gap,
    /// The position occurs twice, or out of order.
    Duplicate,
    /// The event names another predecessor than the one before it.
    WrongPrev,
    /// The chain does not start from the ledger's genesis record.
    UnknownGenesis,
    /// An aggregate's own counter jumps or repeats.
    VersionGap,
    /// A column holds what no writer stores.
    MalformedColumn,
    /// A line of an export can't be understood.
    MalformedLine,
    /// The ledger ends before a checkpoint, its head or its end line says.
    Truncated,
    /// The tree has another root than a checkpoint says.
    Rewritten,
    /// A checkpoint is not signed by the pinned key.
    BadSignature,
    /// The checkpoints are of another ledger.
    OtherLedger,
    /// The stored head or end line disagrees with the events.
    HeadMismatch,
    /// A stored node of the tree disagrees with the events.
    TreeMismatch,
    /// A stored version of an aggregate disagrees with its events.
    VersionMismatch,
    /// The event is not the one that another ledger refers to.
    SourceDiffers,
    /// The event's path does not lead to the checkpoint.
    NotProven,
    /// The event is of another org than the export.
    ForeignOrg,
    /// The storage is damaged and can't be read on.
    Unreadable,
}

impl FindingKind {
    /// The name, as in reports and events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HashMismatch => "hash_mismatch",
            Self::Gap => "gap",
            Self::Duplicate => "duplicate",
            Self::WrongPrev => "wrong_prev",
            Self::UnknownGenesis => "unknown_genesis",
            Self::VersionGap => "version_gap",
            Self::MalformedColumn => "malformed_column",
            Self::MalformedLine => "malformed_line",
            Self::Truncated => "truncated",
            Self::Rewritten => "rewritten",
            Self::BadSignature => "bad_signature",
            Self::OtherLedger => "other_ledger",
            Self::HeadMismatch => "head_mismatch",
            Self::TreeMismatch => "tree_mismatch",
            Self::VersionMismatch => "version_mismatch",
            Self::SourceDiffers => "source_differs",
            Self::NotProven => "not_proven",
            Self::ForeignOrg => "foreign_org",
            Self::Unreadable => "unreadable",
        }
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Finding {
    pub(crate) fn new(seq: u64, kind: FindingKind, detail: impl Into<String>) -> Self {
        Self {
            seq,
            kind,
            detail: detail.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {}: {}", self.seq, self.detail)
    }
}

impl std::error::Error for Finding {}
