//! Verification: whether a ledger is what was written, and if not, where.
//!
//! Works on an open ledger, on a database that is only looked at, and on an
//! export; says which event is the first that is wrong. Never writes, never
//! panics, whatever the files hold. The loop itself is `verify/walk.rs`.

mod exported;
mod finding;
mod source;
mod stored;
mod walk;
mod witness;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use fluffy_base::Digest;
use fluffy_base::id::LedgerId;

pub use finding::{Finding, FindingKind};
pub use source::MetSource;

use crate::checkpoint::ParseCheckpointError;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::export::ReadExportError;
use crate::key::PublicKey;
use crate::ledger::Ledger;
use crate::sqlite;
use crate::tree::Frontier;
use exported::verify_export;
use source::Wanted;
use stored::verify_engine;
use walk::Walk;

/// How many sources one verification lists.
pub const MAX_SOURCES: usize = 10_000;

/// What to verify, and against what.
#[derive(Debug, Clone, Default)]
pub struct VerifyOptions {
    /// How much of the ledger.
    pub extent: Extent,
    /// The texts of checkpoint files, the ledger's own or a witness's.
    pub against: Vec<String>,
    /// The key that must have signed them; without it nobody vouches for them.
    pub key: Option<PublicKey>,
    /// Exports of the part that was archived away, oldest first.
    pub archives: Vec<PathBuf>,
}

/// How much of a ledger is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Extent {
    /// All that is at hand.
    #[default]
    Full,
    /// What came after the newest checkpoint; all if it does not fit.
    SinceCheckpoint,
    /// What came after the newest checkpoint of at most this many events,
    /// which were verified before; all if it does not fit.
    SinceVerified {
        /// The last event that was verified.
        seq: u64,
    },
    /// The newest events, on the word of what is stored about those before:
    /// a look that takes the same time however long the ledger is. Versions
    /// of aggregates are not looked up.
    Newest {
        /// How many, at most.
        events: u64,
    },
}

/// What verification saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verification {
    /// Which ledger; none if not even that can be read.
    pub ledger_id: Option<LedgerId>,
    /// Where it started.
    pub start: Start,
    /// How many events were checked and found good.
    pub events: u64,
    /// The position of the last good event.
    pub last_seq: u64,
    /// Its hash.
    pub last_hash: Digest,
    /// The root of the tree up to it.
    pub root: Digest,
    /// How many checkpoints were compared.
    pub checkpoints_checked: u64,
    /// How many could not be, being older than the start.
    pub checkpoints_passed: u64,
    /// Whether the checkpoints' key was pinned.
    pub trust: Trust,
    /// The events of other ledgers that this one rests on.
    pub sources: Vec<MetSource>,
    /// How many more of them there were.
    pub sources_left_out: u64,
    /// The first thing that is wrong.
    pub verdict: Result<(), Finding>,
}

/// Where verification started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At the genesis record: nothing is taken on trust.
    Genesis,
    /// After a part that was archived away and was not given.
    Archived {
        /// The last event of that part.
        seq: u64,
        /// Whether the pinned key signed that part's end.
        signed: bool,
    },
    /// After a checkpoint that fits, or, for a look at the newest events, after
    /// what is stored of the tree there.
    Checkpoint {
        /// How many events it covers.
        size: u64,
    },
}

/// Whether checkpoints prove anything about who signed them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Signed by the key that the caller pinned.
    Pinned,
    /// Signed by whoever: the caller pinned no key.
    Unpinned,
}

/// Why nothing could be verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The file can't be read.
    #[error("`{}` can't be read", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file is neither a ledger's database nor an export.
    #[error("`{}` is neither a ledger nor an export", path.display())]
    NotALedger {
        /// The file.
        path: PathBuf,
    },
    /// The file is not the export of an org.
    #[error("`{}` is not the export of an org", path.display())]
    NotAnExcerpt {
        /// The file.
        path: PathBuf,
    },
    /// A checkpoint to verify against can't be understood.
    #[error("checkpoint {note} of checkpoint file {file} can't be understood")]
    Checkpoint {
        /// Which of the given texts, from 0.
        file: usize,
        /// Which note in it, from 0.
        note: usize,
        /// Why not.
        #[source]
        source: ParseCheckpointError,
    },
    /// The ledger can't be read at the moment.
    #[error("the ledger can't be read")]
    Store(#[from] StoreError),
    /// An archive can't be read.
    #[error("the archive `{}` can't be read", path.display())]
    Archive {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: ReadExportError,
    },
}

impl Verification {
    /// Whether nothing is wrong.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        self.verdict.is_ok()
    }
}

impl Ledger {
    /// Verifies what is stored, beside all readers and writers; blocks.
    ///
    /// # Errors
    /// The storage can't be reached, or a checkpoint can't be understood; what
    /// is wrong with the ledger itself is in the verdict.
    pub fn verify(&self, options: &VerifyOptions) -> Result<Verification, VerifyError> {
        self.verify_for(options, &[])
    }

    fn verify_for(
        &self,
        options: &VerifyOptions,
        wanted: &[Wanted],
    ) -> Result<Verification, VerifyError> {
        verify_engine(&self.shared.engine, options, wanted)
    }
}

/// Verifies a ledger's directory, its database file, or an export, without
/// writing or creating anything.
///
/// # Errors
/// The file can't be read or is no ledger, or a checkpoint can't be
/// understood; what is wrong with the ledger itself is in the verdict.
pub fn verify_path(path: &Path, options: &VerifyOptions) -> Result<Verification, VerifyError> {
    verify_path_for(path, options, &[])
}

fn verify_path_for(
    path: &Path,
    options: &VerifyOptions,
    wanted: &[Wanted],
) -> Result<Verification, VerifyError> {
    if path.is_dir() {
        return verify_database(&sqlite::Store::database(path), options, wanted);
    }
    let failed = |source| VerifyError::Io {
        path: path.to_owned(),
        source,
    };
    let mut magic = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(16).read_to_end(&mut magic).map_err(failed)?;
    if magic == b"SQLite format 3\0" {
        return verify_database(path, options, wanted);
    }
    verify_export(path, options, wanted)
}

fn verify_database(
    path: &Path,
    options: &VerifyOptions,
    wanted: &[Wanted],
) -> Result<Verification, VerifyError> {
    File::open(path).map_err(|source| VerifyError::Io {
        path: path.to_owned(),
        source,
    })?;
    match sqlite::Store::inspect(path) {
        Ok(store) => verify_engine(&Engine::Sqlite(store), options, wanted),
        Err(error) => {
            let detail = damage(error)?;
            Ok(Verification {
                ledger_id: None,
                start: Start::Genesis,
                events: 0,
                last_seq: 0,
                last_hash: Digest::of(b""),
                root: Frontier::default().root(),
                checkpoints_checked: 0,
                checkpoints_passed: 0,
                trust: trust(options),
                sources: Vec::new(),
                sources_left_out: 0,
                verdict: Err(Finding::new(1, FindingKind::Unreadable, detail)),
            })
        }
    }
}

/// Sums up a walk that is over.
fn sum_up(walk: Walk, ledger_id: LedgerId, start: Start, options: &VerifyOptions) -> Verification {
    let before = match start {
        Start::Genesis => 0,
        Start::Archived { seq, .. } => seq,
        Start::Checkpoint { size } => size,
    };
    let (checked, passed) = (walk.witness.checked(), walk.witness.passed());
    // Of two findings at one event, that of the chain says more.
    let findings = walk.finding.into_iter().chain(walk.witness.into_finding());
    Verification {
        ledger_id: Some(ledger_id),
        start,
        events: walk.head.seq.saturating_sub(before),
        last_seq: walk.head.seq,
        last_hash: walk.head.hash,
        root: walk.head.frontier.root(),
        checkpoints_checked: checked,
        checkpoints_passed: passed,
        trust: trust(options),
        sources: walk.sources,
        sources_left_out: walk.sources_left_out,
        verdict: findings
            .min_by_key(|finding| finding.seq)
            .map_or(Ok(()), Err),
    }
}

fn trust(options: &VerifyOptions) -> Trust {
    match options.key {
        Some(_) => Trust::Pinned,
        None => Trust::Unpinned,
    }
}

/// Tells damage, which is a finding, from trouble that may pass.
fn damage(error: StoreError) -> Result<String, VerifyError> {
    match error {
        StoreError::Full(_)
        | StoreError::Busy(_)
        | StoreError::Unavailable(_)
        | StoreError::UnknownOutcome(_) => Err(error.into()),
        StoreError::Corrupt(ref cause) | StoreError::Other(ref cause) => {
            Ok(format!("{error}: {cause}"))
        }
        StoreError::Malformed { .. } | StoreError::SequenceGap { .. } => Ok(error.to_string()),
    }
}
