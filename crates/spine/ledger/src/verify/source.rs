//! References to events of other ledgers, and following them there.
//!
//! A source names a position, a hash and a checkpoint that covers it; it holds
//! if the other ledger verifies against that checkpoint and has that event.

use std::path::Path;

use fluffy_base::Digest;
use fluffy_base::id::LedgerId;
use serde::Deserialize;

use super::{Verification, VerifyError, VerifyOptions, verify_path_for};
use crate::draft::Source;
use crate::ledger::Ledger;

/// A source that verification met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetSource {
    /// The event that rests on it.
    pub seq: u64,
    /// What it rests on.
    pub source: Source,
}

/// What a followed source asks of the other ledger.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) ledger_id: LedgerId,
    pub(super) seq: u64,
    pub(super) hash: Digest,
}

#[derive(Deserialize)]
struct WithSource {
    source: Fields,
}

#[derive(Deserialize)]
struct Fields {
    checkpoint: String,
    hash: Digest,
    ledger_id: LedgerId,
    seq: u64,
}

impl Source {
    /// The source that a payload names, if it names one.
    #[must_use]
    pub fn in_payload(payload: &str) -> Option<Self> {
        let Fields {
            checkpoint,
            hash,
            ledger_id,
            seq,
        } = serde_json::from_str::<WithSource>(payload).ok()?.source;
        Some(Self {
            ledger_id,
            seq,
            hash,
            checkpoint,
        })
    }

    /// Verifies the other ledger, in a directory, a database or an export,
    /// and that it holds the very event this names.
    ///
    /// # Errors
    /// As [`super::verify_path`].
    pub fn follow(
        &self,
        path: &Path,
        options: &VerifyOptions,
    ) -> Result<Verification, VerifyError> {
        verify_path_for(path, &self.with_checkpoint(options), Some(self.wanted()))
    }

    /// As [`Source::follow`], in a ledger that is open.
    ///
    /// # Errors
    /// As [`Ledger::verify`].
    pub fn follow_open(
        &self,
        ledger: &Ledger,
        options: &VerifyOptions,
    ) -> Result<Verification, VerifyError> {
        ledger.verify_for(&self.with_checkpoint(options), Some(self.wanted()))
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            ledger_id: self.ledger_id,
            seq: self.seq,
            hash: self.hash,
        }
    }

    /// All of it, as the event may be older than any checkpoint given.
    fn with_checkpoint(&self, options: &VerifyOptions) -> VerifyOptions {
        let mut options = options.clone();
        options.extent = super::Extent::Full;
        if !self.checkpoint.is_empty() {
            options.against.push(self.checkpoint.clone());
        }
        options
    }
}
