//! Events and leaves that were archived away, read back for a proof.
//!
//! The nodes of the tree stay with the ledger; only the leaves of single
//! events have to come from the segments. What is read is proved by the path
//! it becomes a part of, so nothing here has to be believed.

use std::ops::ControlFlow;
use std::path::PathBuf;

use fluffy_base::Digest;

use crate::engine::Engine;
use crate::error::StoreError;
use crate::event::Event;
use crate::export::ExportReader;
use crate::tree::{self, Subtrees};

/// The tree of a ledger whose oldest events are in archives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leaves<'l> {
    pub(super) engine: &'l Engine,
    /// The segments, oldest first.
    pub(super) archives: &'l [PathBuf],
}

impl Leaves<'_> {
    /// The archived event at a position.
    pub(super) fn event(&self, seq: u64) -> Result<Option<Event>, StoreError> {
        let mut found = None;
        self.read(seq, 1, |event| {
            found = Some(event);
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// Passes the archived ones of `count` events on until it breaks; the rest
    /// is hot.
    pub(super) fn read(
        &self,
        first: u64,
        count: u64,
        mut take: impl FnMut(Event) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let open = |path: &PathBuf| ExportReader::open(path).map_err(StoreError::other);
        let mut next = first;
        for (index, path) in self.archives.iter().enumerate() {
            if next == first + count {
                break;
            }
            // A segment is over where the next one starts.
            if let Some(later) = self.archives.get(index + 1)
                && open(later)?.header().starts_after() < next
            {
                continue;
            }
            let mut reader = open(path)?;
            reader.skip_to(next).map_err(StoreError::other)?;
            while next < first + count {
                match reader.next_event().map_err(StoreError::other)? {
                    Some(event) if event.seq == next => {
                        next += 1;
                        if take(event).is_break() {
                            return Ok(());
                        }
                    }
                    Some(_) => {}
                    None => break,
                }
            }
        }
        Ok(())
    }
}

impl Subtrees for Leaves<'_> {
    type Error = StoreError;

    fn stored(&mut self, level: u8, position: u64, count: u64) -> Result<Vec<Digest>, StoreError> {
        let mut engine = self.engine;
        let stored = engine.stored(level, position, count);
        if level > 0 || stored.is_ok() || self.archives.is_empty() {
            return stored;
        }
        let mut leaves = Vec::new();
        self.read(position + 1, count, |event| {
            leaves.push(tree::leaf(&event.hash));
            ControlFlow::Continue(())
        })?;
        let archived = leaves.len() as u64;
        if archived < count {
            leaves.extend(engine.stored(0, position + archived, count - archived)?);
        }
        Ok(leaves)
    }
}
