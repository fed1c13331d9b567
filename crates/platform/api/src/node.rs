//! The protocol between server and node: messages, versions, proofs, dialling.
//!
//! What both sides must do alike is here, and only that; what a message means
//! is decided by the server and by the node. Start with [`v1`], which is made
//! from `proto/fluffy/node/v1`; [`dial`] opens a connection.

pub mod dial;
mod enrolment;
pub mod join;

pub use enrolment::{EnrolmentToken, InvalidEnrolmentToken, Transcript};

use std::fmt;

use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

/// The messages and services, generated from the contract.
#[rustfmt::skip]
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    missing_debug_implementations,
    missing_docs,
    reason = "generated"
)]
#[path = "node/fluffy_node_v1.rs"]
pub mod v1;

/// The minor version that this program speaks.
pub const PROTOCOL: u32 = 1;

/// The oldest minor version that a server still takes: the one before.
pub const OLDEST_PROTOCOL: u32 = if PROTOCOL > 1 { PROTOCOL - 1 } else { 1 };

/// What a node can do beside its minor version, as it says in its hello.
pub mod feature {
    /// It runs commands as the root of an instance.
    pub const EXEC_ROOT: &str = "exec_root";
    /// It does errands to instances: signals, and telling how one is.
    pub const ERRANDS: &str = "errands";
    /// It says when a command runs, and as which process.
    pub const EXEC_STARTED: &str = "exec_started";

    /// Everything that this program's node can do.
    pub const ALL: &[&str] = &[ERRANDS, EXEC_ROOT, EXEC_STARTED];
    /// The most that a server takes note of.
    pub const MOST: usize = 64;
}

/// The largest message that a server takes from a node, in bytes.
pub const MAX_FROM_NODE: usize = 1 << 20;

/// The largest message that a node takes from a server: a whole plan.
pub const MAX_TO_NODE: usize = 64 << 20;

/// The largest piece of input or output of an exec session, in bytes.
pub const MAX_EXEC_FRAME: usize = crate::exec::MAX_FRAME;

/// The most reports of one batch.
pub const MAX_REPORTS: usize = 256;

/// The longest line of a log entry, in bytes.
pub const MAX_LOG_LINE: usize = 16 << 10;

/// The most entries of one batch of logs.
pub const MAX_LOG_ENTRIES: usize = 1000;

/// What goes before the random bytes of a datagram that looks for a node.
pub const REACH: &[u8; 12] = b"fluffy-reach";

/// The code of an enrolment that waits for an operator; the machine asks again.
pub const PENDING: &str = "enroll_pending";

/// Where the code of a refusal is.
const CODE_KEY: &str = "fluffy-code";

/// A refusal with its code, as the documentation lists them.
#[must_use]
pub fn refusal(status: Code, code: &'static str, words: impl Into<String>) -> Status {
    let mut more = MetadataMap::new();
    more.insert(CODE_KEY, MetadataValue::from_static(code));
    Status::with_metadata(status, words, more)
}

/// The code of a refusal, if the other side gave one.
#[must_use]
pub fn code_of(status: &Status) -> Option<&str> {
    status.metadata().get(CODE_KEY)?.to_str().ok()
}

impl v1::Position {
    /// Whether what has this position replaces what has the other.
    #[must_use]
    pub fn is_above(self, other: Self) -> bool {
        (self.epoch, self.seq) > (other.epoch, other.seq)
    }
}

impl v1::NodePlan {
    /// The place in the history that the plan follows from.
    #[must_use]
    pub fn position(&self) -> v1::Position {
        v1::Position {
            epoch: self.epoch,
            seq: self.cursor_seq,
        }
    }
}

/// What these carry is nobody's business who only reads a log.
macro_rules! unprintable {
    ($($name:ident)*) => {$(
        impl fmt::Debug for v1::$name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(…)"))
            }
        }
    )*};
}

unprintable! { EnrollBegin ExecOpen RegistryCredential SecretMaterial }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_keeps_its_code() {
        let status = refusal(Code::PermissionDenied, "enroll_denied", "no");
        assert_eq!(code_of(&status), Some("enroll_denied"));
        assert_eq!(code_of(&Status::unknown("no")), None);
    }

    #[test]
    fn tokens_and_secrets_are_not_printed() {
        let secret = v1::SecretMaterial {
            file: b"KEY=value".to_vec(),
        };
        assert_eq!(format!("{secret:?}"), "SecretMaterial(…)");
    }

    #[test]
    fn an_epoch_counts_before_a_sequence_number() {
        let at = |epoch, seq| v1::Position { epoch, seq };
        assert!(at(2, 1).is_above(at(1, 9)));
        assert!(at(1, 2).is_above(at(1, 1)));
        assert!(!at(1, 1).is_above(at(1, 1)));
        assert!(!at(1, 9).is_above(at(2, 1)));
    }
}
