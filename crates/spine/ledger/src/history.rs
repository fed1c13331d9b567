//! Events wherever they are: in the database, or in the archive before it.
//!
//! Reads only. The archive is that beside a SQLite ledger; whoever keeps one
//! elsewhere reads it as an export. What retention has deleted is not here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::archive::{self, Segment, SegmentError};
use crate::error::StoreError;
use crate::event::{Aggregate, Domain, Event};
use crate::export::ExportReader;
use crate::ledger::Ledger;

impl Ledger {
    /// All that is left of one aggregate, oldest first. Where its beginning is
    /// gone, the first event's version is not 1.
    ///
    /// # Errors
    /// The storage or the archive can't be read.
    pub fn history(
        &self,
        domain: Domain,
        aggregate: &Aggregate,
    ) -> Result<Vec<Event>, SegmentError> {
        const PAGE: usize = 1_000;
        let mut hot: Vec<Event> = Vec::new();
        loop {
            let after = hot.last().map_or(0, |event| event.aggregate_version);
            let page = self.read_aggregate(domain, aggregate, after, PAGE)?;
            if page.is_empty() {
                break;
            }
            hot.extend(page);
        }
        // What was moved away since is in the archive: it is read afterwards.
        let mut first = match hot.first() {
            Some(event) => event.aggregate_version,
            None => self.version(domain, aggregate)? + 1,
        };
        let mut parts = vec![hot];
        for segment in self.segments()?.iter().rev() {
            if first <= 1 {
                break;
            }
            let wanted = |event: &Event| {
                event.domain == domain
                    && event.aggregate == *aggregate
                    && event.aggregate_version < first
            };
            let found = read(segment, wanted)?;
            first = found.first().map_or(first, |event| event.aggregate_version);
            parts.push(found);
        }
        Ok(parts.into_iter().rev().flatten().collect())
    }

    /// All events that `wanted` picks, oldest first, archived ones included.
    ///
    /// # Errors
    /// The storage or the archive can't be read.
    pub fn everywhere(&self, wanted: impl Fn(&Event) -> bool) -> Result<Vec<Event>, SegmentError> {
        let by_seq = |event: Event| (event.seq, event);
        let hot = self.last_where(usize::MAX, &wanted)?;
        let mut found: BTreeMap<u64, Event> = hot.into_iter().map(by_seq).collect();
        for segment in self.segments()? {
            found.extend(read(&segment, &wanted)?.into_iter().map(by_seq));
        }
        Ok(found.into_values().collect())
    }

    /// Whether events have left the database.
    ///
    /// # Errors
    /// The storage can't be read.
    pub fn has_archived(&self) -> Result<bool, StoreError> {
        Ok(self.first_hot()? > 1)
    }

    fn segments(&self) -> Result<Vec<Segment>, SegmentError> {
        let directory: Option<PathBuf> = self.shared.engine.archive();
        directory.map_or(Ok(Vec::new()), |directory| archive::segments(&directory))
    }
}

fn read(segment: &Segment, wanted: impl Fn(&Event) -> bool) -> Result<Vec<Event>, SegmentError> {
    let unreadable = |source| SegmentError::Read {
        path: segment.path.clone(),
        source,
    };
    let mut reader = ExportReader::open(&segment.path).map_err(unreadable)?;
    let mut found = Vec::new();
    while let Some(event) = reader.next_event().map_err(unreadable)? {
        if wanted(&event) {
            found.push(event);
        }
    }
    Ok(found)
}
