//! The check at start-up, and what follows from a break in the chain.
//!
//! A break is recorded once as `ledger.chain_break`. It never keeps a ledger
//! from being read; whether it may be written is the opener's choice, until
//! somebody accepts the break by name. What is checked is in `verify`.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use fluffy_base::canonical::MAX_SAFE_INTEGER;
use serde_json::{Value, json};

use crate::checkpoint::{SignError, Signing, newest_signed, read_notes};
use crate::draft::{Batch, Draft};
use crate::error::{AppendError, StoreError};
use crate::event::{Actor, Aggregate, Domain};
use crate::ledger::{Ledger, LedgerOptions, OpenLedgerError};
use crate::sqlite::private_file;
use crate::verify::{Extent, Finding, FindingKind, VerifyError, VerifyOptions};

/// The event type of a break that was found.
const BREAK: &str = "ledger.chain_break";
/// The event type of a break that somebody accepted.
const ACCEPTED: &str = "ledger.break_accepted";
/// The longest detail that goes into an event.
const MAX_DETAIL: usize = 500;
/// How many events of the ledger's own aggregate are read at a time.
const PAGE: usize = 1_000;

/// An open ledger, and what the check of it said.
#[derive(Debug)]
pub struct Opened {
    /// The ledger.
    pub ledger: Ledger,
    /// Whether the chain holds.
    pub health: Health,
}

/// Whether the chain holds, as far as it was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Nothing is wrong.
    Sound,
    /// The first thing that is wrong.
    Broken(Finding),
}

/// What a break in the chain does to writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBreak {
    /// Nothing: the break is recorded and shown.
    #[default]
    Continue,
    /// Appends are refused until [`Ledger::accept_break`].
    RefuseWrites,
}

/// Why a ledger could not be opened and checked.
#[derive(Debug, thiserror::Error)]
pub enum OpenCheckedError {
    /// It could not be opened.
    #[error("the ledger can't be opened")]
    Open(#[from] OpenLedgerError),
    /// It could not be checked.
    #[error("the ledger can't be checked")]
    Check(#[from] CheckError),
}

/// Why a ledger could not be checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The checkpoints can't be read.
    #[error("the ledger's checkpoints can't be read")]
    Checkpoints(#[from] SignError),
    /// The ledger can't be verified.
    #[error("the ledger can't be verified")]
    Verify(#[from] VerifyError),
    /// The break that was found can't be recorded.
    #[error("the break in the chain at event {seq} can't be recorded")]
    Record {
        /// The first bad event.
        seq: u64,
        /// Why not.
        #[source]
        source: AppendError,
    },
}

/// Why a break was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptBreakError {
    /// There is no such break, or it was accepted already.
    #[error("writing is not refused because of a break at event {seq}")]
    NoSuchBreak {
        /// The event that was named.
        seq: u64,
    },
    /// The acceptance can't be recorded.
    #[error("the acceptance of the break at event {seq} can't be recorded")]
    Record {
        /// The event that was named.
        seq: u64,
        /// Why not.
        #[source]
        source: AppendError,
    },
}

impl Ledger {
    /// Opens the SQLite ledger in a directory and checks it since the last
    /// checkpoint that was verified.
    ///
    /// # Errors
    /// The ledger can't be opened or read at all; a break is in the health.
    pub fn open_checked(
        directory: &Path,
        options: LedgerOptions,
    ) -> Result<Opened, OpenCheckedError> {
        let (signing, on_break) = (options.signing.clone(), options.on_break);
        let ledger = Self::open(directory, options)?;
        let health = ledger.check(signing.as_ref(), on_break)?;
        Ok(Opened { ledger, health })
    }

    /// Checks what came after the last checkpoint that was verified; all of it
    /// if there is none. A break is recorded, once.
    ///
    /// # Errors
    /// The storage or the checkpoints can't be read, or the break can't be
    /// recorded.
    pub fn check(
        &self,
        signing: Option<&Signing>,
        on_break: OnBreak,
    ) -> Result<Health, CheckError> {
        let mut options = VerifyOptions {
            extent: Extent::Full,
            key: self.public_key(),
            ..VerifyOptions::default()
        };
        if let Some(signing) = signing {
            options.against.push(read_notes(&signing.checkpoints)?);
            let seq = last_verified(signing);
            options.extent = Extent::SinceVerified { seq };
        }
        let report = self.verify(&options)?;
        let Err(finding) = report.verdict else {
            signing
                .iter()
                .for_each(|signing| note_verified(signing, report.last_seq));
            return Ok(Health::Sound);
        };
        self.note_break(&finding, on_break)
            .map_err(|source| CheckError::Record {
                seq: finding.seq,
                source,
            })?;
        Ok(Health::Broken(finding))
    }

    /// Looks at the newest events, at most so many, and whether the ledger
    /// still has what was signed last: a check for every start, which takes as
    /// long on a large ledger as on a small one. A break is recorded, once; one
    /// that was accepted refuses nothing.
    ///
    /// # Errors
    /// As [`Ledger::check`].
    pub fn check_newest(
        &self,
        events: u64,
        signing: Option<&Signing>,
        on_break: OnBreak,
    ) -> Result<Health, CheckError> {
        let options = VerifyOptions {
            extent: Extent::Newest { events },
            ..VerifyOptions::default()
        };
        let report = self.verify(&options)?;
        let signed = match signing {
            Some(signing) => newest_signed(&signing.checkpoints, self.id())?,
            None => 0,
        };
        let finding = match report.verdict {
            Err(finding) => finding,
            Ok(()) if signed > report.last_seq => {
                // Named by what was signed, which stays the same while new
                // events come.
                let detail = format!(
                    "a checkpoint of {signed} events was signed, and the ledger ends at {}",
                    report.last_seq
                );
                Finding::new(signed, FindingKind::Truncated, detail)
            }
            Ok(()) => return Ok(Health::Sound),
        };
        self.note_break(&finding, on_break)
            .map_err(|source| CheckError::Record {
                seq: finding.seq,
                source,
            })?;
        Ok(Health::Broken(finding))
    }

    /// Accepts the break at this event by name; writing goes on.
    ///
    /// # Errors
    /// Writing is not refused because of that event, or the acceptance can't
    /// be recorded.
    pub fn accept_break(&self, seq: u64, actor: Actor) -> Result<(), AcceptBreakError> {
        let refused = &self.shared.refused_from;
        if seq == 0 || refused.load(Ordering::Acquire) != seq {
            return Err(AcceptBreakError::NoSuchBreak { seq });
        }
        let record = |source| AcceptBreakError::Record { seq, source };
        let draft = self
            .own_draft(ACCEPTED, actor)
            .payload(json!({ "seq": seq }));
        self.append_despite_break(Batch::from(draft))
            .map_err(record)?;
        refused.store(0, Ordering::Release);
        Ok(())
    }

    /// The event at which the chain is broken, if writing is refused for it.
    #[must_use]
    pub fn refused_since(&self) -> Option<u64> {
        match self.shared.refused_from.load(Ordering::Acquire) {
            0 => None,
            seq => Some(seq),
        }
    }

    fn note_break(&self, finding: &Finding, on_break: OnBreak) -> Result<(), AppendError> {
        let seq = finding.seq.clamp(1, MAX_SAFE_INTEGER);
        let past = self.past_breaks(seq);
        if !past.recorded {
            let detail: String = finding.detail.chars().take(MAX_DETAIL).collect();
            let payload = json!({ "seq": seq, "kind": finding.kind.as_str(), "detail": detail });
            let draft = self
                .own_draft(BREAK, Actor::system("ledger"))
                .payload(payload);
            self.append_despite_break(Batch::from(draft))?;
        }
        if on_break == OnBreak::RefuseWrites && !past.accepted {
            self.shared.refused_from.store(seq, Ordering::Release);
        }
        Ok(())
    }

    /// What the ledger says itself about a break at this event.
    fn past_breaks(&self, seq: u64) -> Past {
        let mut past = Past::default();
        let aggregate = self.own_aggregate();
        let mut version = 0;
        loop {
            let events = match self.read_aggregate(Domain::Agent, &aggregate, version, PAGE) {
                Ok(events) => events,
                Err(error) => {
                    // The break may be in these very events; then it is noted
                    // once more, which is better than not at all.
                    warn(&error);
                    return past;
                }
            };
            let Some(last) = events.last() else {
                return past;
            };
            // A tampered version must not keep the loop going.
            if last.aggregate_version <= version {
                return past;
            }
            version = last.aggregate_version;
            for event in &events {
                let named = event.payload.value().ok();
                let named = named.as_ref().and_then(|payload| payload.get("seq"));
                if named.and_then(Value::as_u64) == Some(seq) {
                    past.recorded |= event.event_type == BREAK;
                    past.accepted |= event.event_type == ACCEPTED;
                }
            }
        }
    }

    pub(crate) fn own_aggregate(&self) -> Aggregate {
        Aggregate::new("ledger", self.id().to_string())
    }

    pub(crate) fn own_draft(&self, event_type: &str, actor: Actor) -> Draft {
        Draft::new(Domain::Agent, self.own_aggregate(), event_type, actor)
    }
}

/// Where it is noted how far the ledger was verified: beside the checkpoints.
///
/// A checkpoint alone does not say that: it is signed from the hashes, while
/// events before it may have been changed since.
fn mark(signing: &Signing) -> PathBuf {
    signing.checkpoints.with_extension("verified")
}

/// The last event that was verified; 0 if that is not known.
fn last_verified(signing: &Signing) -> u64 {
    let mut text = String::new();
    let read = File::open(mark(signing)).and_then(|file| file.take(32).read_to_string(&mut text));
    match read {
        Ok(_) => text.trim_end().parse().unwrap_or(0),
        Err(_) => 0,
    }
}

/// Without the note the next check takes longer; it is no reason to fail.
fn note_verified(signing: &Signing, seq: u64) {
    let path = mark(signing);
    let temporary = path.with_extension("verified.new");
    let written = match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => private_file(&temporary),
    };
    let noted = written
        .and_then(|mut file| writeln!(file, "{seq}"))
        .and_then(|()| fs::rename(&temporary, &path));
    if let Err(error) = noted {
        let error: &dyn std::error::Error = &error;
        tracing::warn!(error, "how far the ledger was verified can't be noted");
    }
}

fn warn(error: &StoreError) {
    let error: &dyn std::error::Error = error;
    tracing::warn!(error, "the ledger's own events can't be read");
}

/// What was recorded about one break.
#[derive(Debug, Default)]
struct Past {
    recorded: bool,
    accepted: bool,
}
