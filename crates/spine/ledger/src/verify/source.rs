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
    source: Source,
}

impl Source {
    /// The source that a payload names, if it names one.
    #[must_use]
    pub fn in_payload(payload: &str) -> Option<Self> {
        let read: WithSource = serde_json::from_str(payload).ok()?;
        Some(read.source)
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
        Self::follow_all([self], path, options)
    }

    /// As [`Source::follow`], for all of one ledger in one pass. An event that
    /// was archived away and is not given in the options is not looked at.
    ///
    /// # Errors
    /// As [`super::verify_path`].
    pub fn follow_all<'a>(
        sources: impl IntoIterator<Item = &'a Self>,
        path: &Path,
        options: &VerifyOptions,
    ) -> Result<Verification, VerifyError> {
        let (options, wanted) = asked(sources, options);
        verify_path_for(path, &options, &wanted)
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
        let (options, wanted) = asked([self], options);
        ledger.verify_for(&options, &wanted)
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            ledger_id: self.ledger_id,
            seq: self.seq,
            hash: self.hash,
        }
    }
}

/// All of the ledger, as an event may be older than any checkpoint given.
fn asked<'a>(
    sources: impl IntoIterator<Item = &'a Source>,
    options: &VerifyOptions,
) -> (VerifyOptions, Vec<Wanted>) {
    let mut options = options.clone();
    options.extent = super::Extent::Full;
    let mut wanted = Vec::new();
    for source in sources {
        wanted.push(source.wanted());
        let checkpoint = &source.checkpoint;
        if !checkpoint.is_empty() && !options.against.contains(checkpoint) {
            options.against.push(checkpoint.clone());
        }
    }
    wanted.sort_by_key(|wanted| wanted.seq);
    (options, wanted)
}
