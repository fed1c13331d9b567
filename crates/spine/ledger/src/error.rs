//! What can go wrong in an engine, and while appending.
//!
//! Errors of other operations stand beside their code; these two are shared
//! by the writer, the engines and every reader.

use std::error::Error;
use std::sync::Arc;

use crate::draft::DraftError;
use crate::event::Aggregate;

/// The engine's own error, shared by all who waited for the same commit.
pub type EngineCause = Arc<dyn Error + Send + Sync>;

/// Why the engine could not do something.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// No space, or a quota is used up; nothing was written.
    #[error("no space left for the ledger; nothing was written")]
    Full(#[source] EngineCause),
    /// Another writer held the lock for too long.
    #[error("the ledger is locked by another writer")]
    Busy(#[source] EngineCause),
    /// The stored data can't be read as a ledger.
    #[error("the ledger's storage is damaged")]
    Corrupt(#[source] EngineCause),
    /// The server can't be reached; nothing was written.
    #[error("the ledger's server can't be reached")]
    Unavailable(#[source] EngineCause),
    /// The connection broke during a commit: it may have happened or not.
    #[error("the connection broke during a commit, which may have happened")]
    UnknownOutcome(#[source] EngineCause),
    /// A row holds what no writer stores.
    #[error("event {seq} is malformed in column `{column}`")]
    Malformed {
        /// Its position, as far as it can be read.
        seq: u64,
        /// The column.
        column: &'static str,
    },
    /// Events that should be there are not.
    #[error("event {seq} is missing from the ledger")]
    SequenceGap {
        /// The first that is missing.
        seq: u64,
    },
    /// Anything else the engine reported.
    #[error("the ledger's storage reported an error")]
    Other(#[source] EngineCause),
}

impl StoreError {
    /// Wraps an error that has no kind of its own.
    pub(crate) fn other(source: impl Error + Send + Sync + 'static) -> Self {
        Self::Other(Arc::new(source))
    }
}

/// Why a batch was not appended. Nothing of it was.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// A draft is invalid.
    #[error("a draft can't become an event")]
    Draft(#[from] DraftError),
    /// An aggregate is not at the expected version.
    #[error(
        "`{}` `{}` is at version {current}, not at {expected}",
        aggregate.kind, aggregate.id
    )]
    Conflict {
        /// The aggregate.
        aggregate: Aggregate,
        /// The version the caller named.
        expected: u64,
        /// The version it has.
        current: u64,
    },
    /// The chain does not end where the batch was to follow.
    #[error("the ledger ends at event {current}, not at {expected} as it was known")]
    HeadMoved {
        /// The last event the caller knew.
        expected: u64,
        /// The last event there is; equal only if it is another one.
        current: u64,
        /// The epoch of the ledger.
        epoch: u64,
    },
    /// A draft refers to an event that will never be written.
    #[error("a draft refers to an event that was never written")]
    ReferenceLost,
    /// A draft refers to a ticket of another ledger.
    #[error("a draft refers to a ticket of another ledger")]
    ForeignTicket,
    /// The chain is broken and nobody has accepted it yet.
    #[error("the chain is broken at event {seq}, and the break is not accepted")]
    ChainBroken {
        /// The first bad event.
        seq: u64,
    },
    /// Too much waits to be written, because the storage fails.
    #[error("{events} events wait to be written, and the storage fails")]
    Backlog {
        /// How many wait.
        events: usize,
    },
    /// The ledger is closed.
    #[error("the ledger is closed")]
    Closed,
    /// The engine failed; `Full`, `Busy` and `Unavailable` may be tried again.
    #[error("the events were not stored")]
    Store(#[from] StoreError),
}
