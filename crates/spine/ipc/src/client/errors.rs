//! What can go wrong for a caller: what, why, and whether to try again.
//!
//! Must never claim that a call did not run when that is unknown. Next:
//! `client.rs`.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::frame::EncodeFrameError;
use crate::handshake::ApiRange;
use crate::message::{ErrorCode, Failure};

/// Why there is no connection. [`ConnectError::hint`] says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody serves the path, or we may not reach it.
    #[error("cannot reach a server at `{}`", path.display())]
    Unreachable {
        /// Where.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The server did not answer the handshake in time.
    #[error("the server at `{}` did not answer within {} ms", path.display(), after.as_millis())]
    TimedOut {
        /// Where.
        path: PathBuf,
        /// How long we waited.
        after: Duration,
    },
    /// The server closed the connection, or what it sent is no handshake.
    #[error("the server at `{}` did not complete the handshake", path.display())]
    Closed {
        /// Where.
        path: PathBuf,
    },
    /// The server does not speak our version of the calls.
    #[error(
        "the server at `{}` speaks api versions {} to {}, this program speaks {ours}",
        path.display(), supported.oldest, supported.newest
    )]
    Version {
        /// Where.
        path: PathBuf,
        /// The version we speak.
        ours: u32,
        /// The versions the server speaks.
        supported: ApiRange,
    },
    /// The server refused for another reason.
    #[error("the server at `{}` refused the connection", path.display())]
    Refused {
        /// Where.
        path: PathBuf,
        /// What the server said.
        #[source]
        failure: Failure,
    },
}

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The server answered with a failure.
    #[error("the call `{method}` failed")]
    Failed {
        /// The method.
        method: String,
        /// What the server said.
        #[source]
        failure: Failure,
    },
    /// No answer came in time; the call was withdrawn but may have run.
    #[error("the call `{method}` was not answered within {} ms", after.as_millis())]
    TimedOut {
        /// The method.
        method: String,
        /// How long we waited.
        after: Duration,
    },
    /// The connection ended before the answer; the call may have run.
    #[error("the connection ended before the call `{method}` was answered")]
    Disconnected {
        /// The method.
        method: String,
        /// Why the server ended it, if it said so.
        #[source]
        reason: Option<Failure>,
    },
    /// The parameters are too large or have no JSON form; nothing was sent.
    #[error("cannot encode the parameters of the call `{method}`")]
    Encode {
        /// The method.
        method: String,
        /// What is wrong with them.
        #[source]
        source: EncodeFrameError,
    },
    /// The call succeeded, but its result is not of the expected type.
    #[error("the result of the call `{method}` is not what was expected")]
    Decode {
        /// The method.
        method: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

impl ConnectError {
    /// Whether the same attempt may succeed later without a change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ),
            Self::TimedOut { .. } | Self::Closed { .. } => true,
            Self::Version { .. } => false,
            Self::Refused { failure, .. } => failure.retryable,
        }
    }

    /// How to fix it, as one sentence for a person.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "start the server, or check the path of its socket",
            Self::TimedOut { .. } => "the server is busy or stuck: try again, or restart it",
            Self::Closed { .. } => "check that the path is one of ours, then restart the server",
            Self::Version {
                ours, supported, ..
            } if *ours > supported.newest => {
                "the server is older than this program: restart it with the new version"
            }
            Self::Version { .. } => "this program is older than the server: update it",
            Self::Refused { failure, .. } if failure.retryable => "try again in a moment",
            Self::Refused { .. } => "see what the server says above",
        }
    }
}

impl CallError {
    /// Whether the same call may succeed later without a change.
    ///
    /// After a timeout or a lost connection the call may have run already:
    /// repeat it only if running twice does no harm.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Failed { failure, .. } => failure.retryable,
            Self::TimedOut { .. } | Self::Disconnected { reason: None, .. } => true,
            Self::Disconnected {
                reason: Some(reason),
                ..
            } => reason.retryable,
            Self::Encode { .. } | Self::Decode { .. } => false,
        }
    }

    /// The code of the server's failure, if that is what it is.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Failed { failure, .. } => Some(failure.code),
            _ => None,
        }
    }
}
