//! Checking an excerpt from its file alone, and a key that the caller trusts.
//!
//! Believes nothing in the file: every event has to lead to the checkpoint,
//! and that to be signed. What can't be seen from a file is said: whether
//! events were left out shows only where an aggregate's numbers jump.

use std::collections::HashMap;
use std::path::Path;

use fluffy_base::Digest;
use serde::Serialize;

use super::{EndLine, Excerpt, ExcerptError, ProvenEvent};
use crate::chain::AggregateKey;
use crate::event::Event;
use crate::export::{Lines, ReadExportError};
use crate::key::PublicKey;
use crate::verify::{Finding, FindingKind, Trust, VerifyError};

/// How many gaps are listed.
pub const MAX_GAPS: usize = 1_000;

/// What an excerpt is held against.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExcerptOptions<'o> {
    /// Keys of which one must have signed its checkpoint: each server of a
    /// platform has its own. Without any the file's own key is taken, for which
    /// nobody vouches.
    pub keys: &'o [PublicKey],
    /// Kinds of aggregates whose events are not all of one org: their numbers
    /// jump in every excerpt.
    pub shared: &'o [&'o str],
}

/// What was seen in an excerpt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExcerptVerification {
    /// What it says that it is of.
    pub of: Excerpt,
    /// Whether the key was pinned.
    pub trust: Trust,
    /// How many events were checked and found good.
    pub events: u64,
    /// The position of the last good event; where it begins, if there is none.
    pub last_seq: u64,
    /// Where numbers of aggregates jump, at most [`MAX_GAPS`] of them.
    pub gaps: Vec<VersionGap>,
    /// How many more of them there were.
    pub gaps_left_out: u64,
    /// The first thing that is wrong.
    pub verdict: Result<(), Finding>,
}

/// Events of an aggregate that are not in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VersionGap {
    /// The event behind the gap.
    pub seq: u64,
    /// Whose events are missing.
    pub aggregate_type: String,
    /// Which.
    pub aggregate_id: String,
    /// The first version that is missing.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// Whether such aggregates have events of several orgs, so that nothing
    /// need be missing.
    pub shared: bool,
}

/// Verifies the excerpt in a file.
///
/// # Errors
/// The file can't be read, or is no excerpt.
pub fn verify_excerpt(
    path: &Path,
    options: &ExcerptOptions<'_>,
) -> Result<ExcerptVerification, VerifyError> {
    let other = || VerifyError::NotAnExcerpt {
        path: path.to_owned(),
    };
    let mut lines = Lines::open(path).map_err(|error| match error {
        ReadExportError::Io { path, source } => VerifyError::Io { path, source },
        _ => other(),
    })?;
    let first = lines.next().map_err(|_| other())?;
    let of = first.and_then(Excerpt::parse).ok_or_else(other)?;
    let mut walk = Walk {
        versions: HashMap::new(),
        shared: options.shared,
        seen: ExcerptVerification {
            trust: match options.keys {
                [] => Trust::Unpinned,
                _ => Trust::Pinned,
            },
            events: 0,
            last_seq: of.after,
            gaps: Vec::new(),
            gaps_left_out: 0,
            verdict: Ok(()),
            of,
        },
    };
    if let Err(finding) = walk.header(options.keys) {
        walk.seen.verdict = Err(finding);
        return Ok(walk.seen);
    }
    if let Err(finding) = walk.through(&mut lines) {
        walk.report(finding);
    }
    Ok(walk.seen)
}

struct Walk<'o> {
    /// The last version of each aggregate.
    versions: HashMap<AggregateKey, u64>,
    shared: &'o [&'o str],
    seen: ExcerptVerification,
}

impl Walk<'_> {
    /// Nothing in the file holds if its checkpoint does not.
    fn header(&self, pinned: &[PublicKey]) -> Result<(), Finding> {
        let of = &self.seen.of;
        let finding = |kind, detail: String| Finding::new(of.after.saturating_add(1), kind, detail);
        let is_signed = pinned.iter().any(|key| of.checkpoint.is_signed_by(key));
        if !pinned.is_empty() && !is_signed {
            let detail = match pinned {
                [_] => "the checkpoint is not signed by the pinned key".to_owned(),
                _ => format!(
                    "the checkpoint is signed by none of the {} pinned keys; {} is beside it",
                    pinned.len(),
                    of.key
                ),
            };
            return Err(finding(FindingKind::BadSignature, detail));
        }
        of.check().map_err(|error| {
            let kind = match error {
                ExcerptError::OtherLedger(_) => FindingKind::OtherLedger,
                ExcerptError::After(_) => FindingKind::HeadMismatch,
                _ => FindingKind::BadSignature,
            };
            finding(kind, error.to_string())
        })
    }

    /// Every line up to the end; what ends it early is returned.
    fn through(&mut self, lines: &mut Lines) -> Result<(), Finding> {
        let mut end = None;
        loop {
            let next = self.seen.last_seq.saturating_add(1);
            let number = lines.number() + 1;
            let malformed = |why: String| {
                let detail = format!("line {number} {why}");
                Finding::new(next, FindingKind::MalformedLine, detail)
            };
            let text = match lines.next() {
                Ok(Some(text)) => text,
                Ok(None) => break,
                // A line without its end was cut off.
                Err(error) => {
                    let detail = format!("{error}: the end is missing, or was changed");
                    return Err(Finding::new(next, FindingKind::Truncated, detail));
                }
            };
            if end.is_some() {
                return Err(malformed("stands after the end line".to_owned()));
            }
            if text.starts_with("{\"end\"") {
                let line = serde_json::from_str::<EndLine>(text).ok();
                let same = |line: &EndLine| serde_json::to_string(line).is_ok_and(|it| it == text);
                let line = line.filter(same);
                let Some(line) = line else {
                    return Err(malformed("is no end line".to_owned()));
                };
                end = Some((line.end.events, line.end.last_seq));
                continue;
            }
            let event = ProvenEvent::parse(text).map_err(|error| {
                let cause = std::error::Error::source(&error);
                let cause = cause.map(|it| format!(": {it}")).unwrap_or_default();
                malformed(format!("can't be understood: {error}{cause}"))
            })?;
            self.event(&event)?;
        }
        let (events, last) = (self.seen.events, self.seen.last_seq);
        let missing =
            |detail: String| Finding::new(last.saturating_add(1), FindingKind::Truncated, detail);
        match end {
            Some(said) if said == (events, last) => Ok(()),
            Some((said, said_last)) => Err(missing(format!(
                "the end line says {said} events up to {said_last}, there are {events} up to {last}"
            ))),
            None => Err(missing(
                "the file has no end line: it was cut off".to_owned(),
            )),
        }
    }

    fn event(&mut self, next: &ProvenEvent) -> Result<(), Finding> {
        let seq = next.event.seq;
        if let Some((kind, detail)) = self.seen.of.fault(self.seen.last_seq, next) {
            return Err(Finding::new(seq, kind, detail));
        }
        self.version(&next.event);
        self.seen.events += 1;
        self.seen.last_seq = seq;
        Ok(())
    }

    /// Looks whether the aggregate's events before this one are there.
    fn version(&mut self, event: &Event) {
        let key = AggregateKey::new(event.domain, &event.aggregate);
        let now = event.aggregate_version;
        let expected = match self.versions.insert(key, now) {
            Some(before) => before.saturating_add(1),
            // Where the file begins later, so may every aggregate in it.
            None if self.seen.of.after > 0 => now,
            None => 1,
        };
        if now == expected {
            return;
        }
        let shared = self.shared.contains(&event.aggregate.kind.as_str());
        let gap = VersionGap {
            seq: event.seq,
            aggregate_type: event.aggregate.kind.clone(),
            aggregate_id: event.aggregate.id.clone(),
            first: expected,
            last: now.saturating_sub(1),
            shared,
        };
        if !shared {
            let detail = format!(
                "events before it are missing: of {} `{}` version {expected} was to come, and {now} came",
                gap.aggregate_type, gap.aggregate_id
            );
            self.report(Finding::new(event.seq, FindingKind::VersionGap, detail));
        }
        match self.seen.gaps.len() < MAX_GAPS {
            true => self.seen.gaps.push(gap),
            false => self.seen.gaps_left_out += 1,
        }
    }

    /// Keeps the first finding.
    fn report(&mut self, finding: Finding) {
        if self.seen.verdict.is_ok() {
            self.seen.verdict = Err(finding);
        }
    }
}

impl ExcerptVerification {
    /// Whether nothing is wrong.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        self.verdict.is_ok()
    }

    /// The root of the checkpoint.
    #[must_use]
    pub const fn root(&self) -> Digest {
        self.of.checkpoint.checkpoint.root
    }
}
