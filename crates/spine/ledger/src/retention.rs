//! Retention: old days move to the archive, old archives go, never unsaid.
//!
//! [`Ledger::enforce`] is called now and then by whoever owns the ledger. Each
//! finished day becomes a segment; a segment's events leave the database only
//! after it was read back; what is deleted is recorded before it is deleted.
//! How segments look is in `archive`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fluffy_base::{ByteSize, Timestamp};
use serde_json::{Value, json};

use crate::archive::{self, CheckedSegment, Plan, Segment, SegmentError};
use crate::chain::Head;
use crate::draft::Draft;
use crate::engine::{Anchor, Engine};
use crate::error::{AppendError, StoreError};
use crate::event::{Actor, Domain};
use crate::key::{KeyFileError, SigningKeyFile};
use crate::ledger::Ledger;
use crate::sqlite;

const DAY: Duration = Duration::from_secs(86_400);
/// The types that tell how full the storage is.
const LEVELS: [&str; 3] = [
    "ledger.storage_normal",
    "ledger.storage_warning",
    "ledger.storage_critical",
];

/// How long and how much is kept.
#[derive(Debug, Clone)]
pub struct Retention {
    /// The directory of the archive.
    pub archive: PathBuf,
    /// How long events stay in the database.
    pub keep_hot: Duration,
    /// How long segments stay in the archive, from the day of their events.
    pub keep: Duration,
    /// How much database and archive may take up together.
    pub budget: ByteSize,
    /// The most events in one segment.
    pub segment_events: u64,
    /// Nothing from this event on is moved or deleted: a view has not seen
    /// it yet, or the law wants it kept.
    pub hold_from: Option<u64>,
    /// The key that signs the checkpoint of a segment, if any.
    pub key: Option<PathBuf>,
    /// In whose domain it is recorded that a segment was sealed or pruned.
    pub domain: Domain,
}

impl Retention {
    /// The agent's defaults: 30 days in the database, 90 days or 1 GiB in all,
    /// with the archive in the ledger's directory.
    #[must_use]
    pub fn agent(ledger: &Path) -> Self {
        Self {
            archive: ledger.join(archive::ARCHIVE),
            keep_hot: 30 * DAY,
            keep: 90 * DAY,
            budget: ByteSize(1 << 30),
            segment_events: 1_000_000,
            hold_from: None,
            key: None,
            domain: Domain::Agent,
        }
    }
}

/// What enforcing retention did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Enforced {
    /// Segments that were written.
    pub sealed: Vec<Segment>,
    /// The last event that left the database; none if none did.
    pub pruned_to: Option<u64>,
    /// Segments that were deleted.
    pub deleted: Vec<Segment>,
    /// What database and archive take up now.
    pub used: ByteSize,
    /// How full that is.
    pub level: Level,
}

/// How full the storage is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    /// Less than 80% of the budget.
    #[default]
    Normal,
    /// At least 80%.
    Warning,
    /// At least 95%.
    Critical,
}

/// Why retention could not be enforced. What was done before stays done.
#[derive(Debug, thiserror::Error)]
pub enum RetentionError {
    /// The ledger's storage failed.
    #[error("the ledger's storage failed")]
    Store(#[from] StoreError),
    /// A segment could not be written, read back or deleted.
    #[error("the archive can't be kept")]
    Segment(#[from] SegmentError),
    /// What was done could not be recorded.
    #[error("what retention does can't be recorded")]
    Record(#[from] AppendError),
    /// The key that signs segments can't be used.
    #[error("the key for segments can't be used")]
    Key(#[from] KeyFileError),
    /// A segment does not continue where the database starts.
    #[error("the segment `{}` does not fit the ledger", path.display())]
    Foreign {
        /// The segment.
        path: PathBuf,
    },
}

impl Ledger {
    /// Moves finished days to the archive, empties the database of what is
    /// old, and deletes archives that are too old or too much.
    ///
    /// # Errors
    /// Storage or archive fail; nothing is lost then, and the next call goes
    /// on where this one stopped.
    pub fn enforce(&self, retention: &Retention) -> Result<Enforced, RetentionError> {
        let _lock =
            sqlite::one_at_a_time(&retention.archive).map_err(|source| SegmentError::Io {
                path: retention.archive.clone(),
                source,
            })?;
        let key = retention
            .key
            .as_deref()
            .map(SigningKeyFile::open)
            .transpose()?;
        let keeper = Keeper {
            ledger: self,
            engine: &self.shared.engine,
            retention,
            key,
            now: self.shared.clock.now(),
        };
        let mut done = Enforced {
            sealed: keeper.seal_finished_days()?,
            ..Enforced::default()
        };
        done.pruned_to = keeper.prune(Pressure::None)?;
        if keeper.level()? > Level::Normal {
            done.pruned_to = keeper.prune(Pressure::Space)?.or(done.pruned_to);
        }
        done.level = keeper.level()?;
        keeper.announce(done.level)?;
        done.deleted = keeper.delete_archives()?;
        done.used = ByteSize(keeper.used()?);
        Ok(done)
    }
}

/// Whether events leave the database before their time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pressure {
    None,
    Space,
}

/// One call of [`Ledger::enforce`].
struct Keeper<'k> {
    ledger: &'k Ledger,
    engine: &'k Engine,
    retention: &'k Retention,
    key: Option<SigningKeyFile>,
    now: Timestamp,
}

impl Keeper<'_> {
    fn seal_finished_days(&self) -> Result<Vec<Segment>, RetentionError> {
        let mut start = self.sealed_end()?;
        let mut sealed = Vec::new();
        for (last_seq, day) in self.finished_parts(start.seq + 1)? {
            let plan = Plan {
                start: &start,
                last_seq,
                day,
                key: self.key.as_ref(),
            };
            let (segment, checked) = archive::seal(self.engine, &self.retention.archive, &plan)?;
            let payload = sealed_payload(&segment, &checked);
            self.record_in(self.retention.domain, "ledger.segment_sealed", payload)?;
            sealed.push(segment);
            start = checked.end.head;
        }
        Ok(sealed)
    }

    /// Where the archive ends, which is where the next segment starts. One
    /// that is gone though its events are not is written again from there.
    fn sealed_end(&self) -> Result<Head, RetentionError> {
        let start = match self.engine.anchor()? {
            Some(anchor) => anchor.head,
            None => Head::empty(&self.engine.genesis()),
        };
        let mut end = start.seq;
        let mut last = None;
        for segment in archive::segments(&self.retention.archive)? {
            if segment.first_seq == end + 1 {
                end = segment.last_seq;
                last = Some(segment);
            }
        }
        match last {
            Some(last) => Ok(self.check(&last)?.end.head),
            None => Ok(start),
        }
    }

    /// The last event and the day of each part that is to be a segment: a day
    /// that is over, or as many events as a segment holds.
    fn finished_parts(&self, from: u64) -> Result<Vec<(u64, String)>, RetentionError> {
        let today = archive::day(self.now);
        let mut parts = Vec::new();
        // The latest day seen, so that a clock set back opens no new segment.
        let mut open: Option<(u64, u64, String)> = None;
        let mut failed = None;
        self.engine.scan(from, &mut |row| {
            let (seq, day) = match row {
                Ok(row) => (row.seq, archive::day(row.occurred_at)),
                Err(fault) => {
                    let (seq, column) = (fault.seq, fault.column);
                    failed = Some(StoreError::Malformed { seq, column });
                    return ControlFlow::Break(());
                }
            };
            let day = day.min(today.clone());
            open = Some(match open.take() {
                Some((first, last, latest))
                    if day <= latest && last - first + 1 < self.retention.segment_events =>
                {
                    (first, seq, latest)
                }
                Some((_, last, latest)) => {
                    let day = day.max(latest.clone());
                    parts.push((last, latest));
                    (seq, seq, day)
                }
                None => (seq, seq, day),
            });
            ControlFlow::Continue(())
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        if let Some((_, last, day)) = open
            && day < today
        {
            parts.push((last, day));
        }
        Ok(parts)
    }

    /// Drops the events of segments that are old enough, oldest first.
    fn prune(&self, pressure: Pressure) -> Result<Option<u64>, RetentionError> {
        let limit = archive::day(before(self.now, self.retention.keep_hot));
        let mut pruned = None;
        for segment in archive::segments(&self.retention.archive)? {
            let first_hot = self.ledger.first_hot()?;
            if segment.last_seq < first_hot {
                continue;
            }
            let held = self
                .retention
                .hold_from
                .is_some_and(|hold| segment.last_seq >= hold);
            let due = pressure == Pressure::Space || segment.day < limit;
            if held || !due {
                break;
            }
            let end = self.fitting(&segment, first_hot)?;
            let (first, last) = (segment.first_seq, segment.last_seq);
            let payload = json!({ "first_seq": first, "last_seq": last });
            self.record_in(self.retention.domain, "ledger.segment_pruned", payload)?;
            self.engine.prune(&end)?;
            pruned = Some(last);
        }
        Ok(pruned)
    }

    /// The end of a segment that holds the very events that are to go: since
    /// every hash contains the one before, it is enough to compare the last.
    fn fitting(&self, segment: &Segment, first_hot: u64) -> Result<Anchor, RetentionError> {
        let checked = self.check(segment)?;
        let stored = self.engine.read(segment.last_seq, 1)?;
        let hash = stored.first().map(|event| event.hash);
        if checked.start.seq + 1 != first_hot || hash != Some(checked.end.head.hash) {
            return Err(self.foreign(segment));
        }
        Ok(checked.end)
    }

    fn check(&self, segment: &Segment) -> Result<CheckedSegment, RetentionError> {
        let checked = segment.check()?;
        // The name is only a name: what counts is what is inside.
        let inside = (checked.start.seq + 1, checked.end.head.seq);
        if inside != (segment.first_seq, segment.last_seq) {
            return Err(self.foreign(segment));
        }
        Ok(checked)
    }

    fn foreign(&self, segment: &Segment) -> RetentionError {
        RetentionError::Foreign {
            path: segment.path.clone(),
        }
    }

    /// Deletes segments that are too old, then the oldest while there is too
    /// much. One whose events are still in the database stays.
    fn delete_archives(&self) -> Result<Vec<Segment>, RetentionError> {
        let limit = archive::day(before(self.now, self.retention.keep));
        let first_hot = self.ledger.first_hot()?;
        let mut deleted = Vec::new();
        for segment in archive::segments(&self.retention.archive)? {
            let held = self
                .retention
                .hold_from
                .is_some_and(|hold| segment.last_seq >= hold);
            if held || segment.last_seq >= first_hot {
                break;
            }
            let reason = if segment.day < limit {
                "age"
            } else if self.used()? >= self.retention.budget.0 {
                "space"
            } else {
                break;
            };
            let payload = json!({
                "first_seq": segment.first_seq,
                "last_seq": segment.last_seq,
                "bytes": segment.bytes,
                "reason": reason,
            });
            self.record("ledger.archive_deleted", payload)?;
            segment.remove()?;
            deleted.push(segment);
        }
        Ok(deleted)
    }

    /// Bytes in the database and the archive. Snapshots are not counted: five
    /// copies of the same events would make the budget mean something else.
    fn used(&self) -> Result<u64, RetentionError> {
        let segments = archive::segments(&self.retention.archive)?;
        let archived: u64 = segments.iter().map(|segment| segment.bytes).sum();
        Ok(self.engine.bytes_used()?.saturating_add(archived))
    }

    fn level(&self) -> Result<Level, RetentionError> {
        let (used, budget) = (
            u128::from(self.used()?),
            u128::from(self.retention.budget.0),
        );
        Ok(if used * 100 >= budget * 95 {
            Level::Critical
        } else if used * 100 >= budget * 80 {
            Level::Warning
        } else {
            Level::Normal
        })
    }

    /// Records the level if it is another than the one recorded last.
    fn announce(&self, level: Level) -> Result<(), RetentionError> {
        let event_type = level.event_type();
        let last = self.last_announced()?;
        if last.as_deref().unwrap_or(Level::Normal.event_type()) == event_type {
            return Ok(());
        }
        let payload =
            json!({ "used_bytes": self.used()?, "budget_bytes": self.retention.budget.0 });
        self.record(event_type, payload)
    }

    /// The last level that was recorded, from the ledger's own events.
    fn last_announced(&self) -> Result<Option<String>, RetentionError> {
        const PAGE: u64 = 200;
        let aggregate = self.ledger.own_aggregate();
        let mut end = self.ledger.version(Domain::Agent, &aggregate)?;
        while end > 0 {
            let after = end.saturating_sub(PAGE);
            let limit = usize::try_from(end - after).unwrap_or(usize::MAX);
            let events = self
                .ledger
                .read_aggregate(Domain::Agent, &aggregate, after, limit)?;
            let mut newest_first = events.into_iter().rev();
            if let Some(event) =
                newest_first.find(|event| LEVELS.contains(&event.event_type.as_str()))
            {
                return Ok(Some(event.event_type));
            }
            end = after;
        }
        Ok(None)
    }

    fn record(&self, event_type: &str, payload: Value) -> Result<(), RetentionError> {
        self.record_in(Domain::Agent, event_type, payload)
    }

    fn record_in(
        &self,
        domain: Domain,
        event_type: &str,
        payload: Value,
    ) -> Result<(), RetentionError> {
        let (own, actor) = (self.ledger.own_aggregate(), Actor::system("ledger"));
        let draft = Draft::new(domain, own, event_type, actor);
        self.ledger.append_blocking(draft.payload(payload))?;
        Ok(())
    }
}

impl Level {
    const fn event_type(self) -> &'static str {
        let [normal, warning, critical] = LEVELS;
        match self {
            Self::Normal => normal,
            Self::Warning => warning,
            Self::Critical => critical,
        }
    }
}

fn sealed_payload(segment: &Segment, checked: &CheckedSegment) -> Value {
    json!({
        "first_seq": segment.first_seq,
        "last_seq": segment.last_seq,
        "first_hash": checked.first_hash,
        "last_hash": checked.end.head.hash,
        "sha256": checked.sha256,
        "bytes": segment.bytes,
        "uri": segment.path.file_name().map(|name| name.to_string_lossy()),
    })
}

fn before(now: Timestamp, span: Duration) -> Timestamp {
    let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_micros(now.as_micros().saturating_sub(micros))
}
