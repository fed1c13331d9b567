//! What the server or the way to it did wrong, and what that means for us.
//!
//! The one question that matters most is whether a commit may have happened
//! all the same; everything unclear counts as "it may".

use std::io;
use std::sync::Arc;

use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::error::StoreError;

/// Why a request did not succeed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The server refused it, or the connection broke.
    #[error("the request to PostgreSQL failed")]
    Request(#[from] tokio_postgres::Error),
    /// No answer came within the time that any answer may take.
    #[error("PostgreSQL did not answer in time")]
    Late,
    /// Too many others are being answered.
    #[error("all connections to PostgreSQL were in use for too long")]
    Crowded,
    /// The thread that drives the connections could not be started.
    #[error("the connections to PostgreSQL can't be driven")]
    Driver(#[source] io::Error),
    /// A row of the ledger's own bookkeeping makes no sense.
    #[error("the `{table}` row of the ledger can't be understood")]
    BadRow {
        /// The table.
        table: &'static str,
    },
    /// The request is over, and the error already has its kind.
    #[error("the request to PostgreSQL failed")]
    Sorted(#[source] StoreError),
}

impl Failure {
    fn server_error(&self) -> Option<&DbError> {
        match self {
            Self::Request(error) => error.as_db_error(),
            _ => None,
        }
    }

    fn code(&self) -> Option<&SqlState> {
        self.server_error().map(DbError::code)
    }

    /// Whether the session is of no more use.
    pub(super) fn ends_session(&self) -> bool {
        match self.server_error() {
            Some(error) => {
                is_fatal(error)
                    || is_class(error, "57P")
                    || is_class(error, "08")
                    // A standby took over, or a cached statement no longer fits.
                    || *error.code() == SqlState::READ_ONLY_SQL_TRANSACTION
                    || *error.code() == SqlState::FEATURE_NOT_SUPPORTED
            }
            None => self.is_passing(),
        }
    }

    /// Whether the same request may succeed on another connection.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Late | Self::Crowded | Self::Driver(_) => true,
            Self::Request(error) => match error.as_db_error() {
                Some(error) => {
                    is_class(error, "57P")
                        || is_class(error, "08")
                        || *error.code() == SqlState::TOO_MANY_CONNECTIONS
                        || *error.code() == SqlState::READ_ONLY_SQL_TRANSACTION
                }
                None => error.is_closed() || is_transport(error),
            },
            Self::BadRow { .. } | Self::Sorted(_) => false,
        }
    }

    /// Whether a statement that failed like this may have been carried out.
    ///
    /// The server's word is an answer, and so is that nothing was sent.
    pub(super) fn leaves_statement_open(&self) -> bool {
        self.server_error().is_none() && self.is_passing()
    }

    /// Whether a `COMMIT` that failed like this may have happened.
    ///
    /// A session that was ended while it waited for a standby has committed,
    /// so of the server's words only a plain error is an answer.
    pub(super) fn leaves_commit_open(&self) -> bool {
        self.server_error().is_none_or(is_fatal)
    }

    /// Whether a statement that is a transaction by itself may have happened.
    pub(super) fn leaves_transaction_open(&self) -> bool {
        self.leaves_statement_open() || self.server_error().is_some_and(is_fatal)
    }
}

fn is_fatal(error: &DbError) -> bool {
    !matches!(error.parsed_severity(), Some(Severity::Error))
}

fn is_class(error: &DbError, class: &str) -> bool {
    error.code().code().starts_with(class)
}

/// Whether the error comes from the socket and not from a value.
fn is_transport(error: &tokio_postgres::Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<io::Error>())
}

impl From<Failure> for StoreError {
    /// Sorts a failure into the kinds callers can act on.
    fn from(failure: Failure) -> Self {
        let kind = match failure.code() {
            Some(code) if *code == SqlState::DISK_FULL => StoreError::Full,
            Some(code)
                if *code == SqlState::LOCK_NOT_AVAILABLE
                    || *code == SqlState::QUERY_CANCELED
                    || *code == SqlState::T_R_DEADLOCK_DETECTED
                    || *code == SqlState::T_R_SERIALIZATION_FAILURE =>
            {
                StoreError::Busy
            }
            Some(code)
                if *code == SqlState::DATA_CORRUPTED || *code == SqlState::INDEX_CORRUPTED =>
            {
                StoreError::Corrupt
            }
            _ if matches!(failure, Failure::BadRow { .. }) => StoreError::Corrupt,
            _ if failure.is_passing() => StoreError::Unavailable,
            _ => StoreError::Other,
        };
        match failure {
            Failure::Sorted(error) => error,
            failure => kind(Arc::new(failure)),
        }
    }
}
