//! Proofs of many events at once, page by page, against one checkpoint.
//!
//! A page reads a bounded stretch of the ledger once, hot or archived, and
//! takes the leaves of its proofs from there. It is bound to a size of the
//! tree and not to a signature: pages of several servers fit together. Whoever
//! has the checkpoint of that size checks them; see `excerpt`.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;

use fluffy_base::Digest;

use super::ProveError;
use super::archived::Leaves;
use crate::error::StoreError;
use crate::event::Event;
use crate::excerpt::ProvenEvent;
use crate::ledger::Ledger;
use crate::tree::{self, STRIDE, Subtrees};

/// How many events one page looks at, so that a page that finds little ends.
const LOOKED_AT: u64 = 20_000;
/// About how many bytes of events one page has.
const MAX_BYTES: usize = 2 << 20;
/// How many events are read at once.
const BATCH: usize = 1_000;
/// So many leaves share a stored node, and are read together.
const BLOCK: u64 = 1 << STRIDE;

/// Which events a page proves.
#[derive(Debug, Clone, Copy)]
pub struct Stretch<'a> {
    /// Those behind this one.
    pub after: u64,
    /// In the tree of so many events.
    pub size: u64,
    /// How many at most.
    pub limit: usize,
    /// The segments of archived events, oldest first.
    pub archives: &'a [PathBuf],
}

/// Events with their proofs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvenPage {
    /// The events, oldest first.
    pub items: Vec<ProvenEvent>,
    /// The last event that was looked at; none once that is all.
    pub next: Option<u64>,
}

impl Ledger {
    /// Proves the events of a stretch that `wanted` picks; blocks.
    ///
    /// # Errors
    /// There are not so many events, some were archived away and their segment
    /// was not given, or the ledger is broken.
    pub fn prove_page(
        &self,
        stretch: &Stretch<'_>,
        wanted: impl Fn(&Event) -> bool,
    ) -> Result<ProvenPage, ProveError> {
        let Stretch { after, size, .. } = *stretch;
        if size == 0 || size > self.shared.engine.head()?.seq {
            return Err(ProveError::NoSuchEvent { seq: size });
        }
        if after >= size {
            let items = Vec::new();
            return Ok(ProvenPage { items, next: None });
        }
        let rest = Leaves {
            engine: &self.shared.engine,
            archives: stretch.archives,
        };
        let first = after / BLOCK * BLOCK + 1;
        let mut gathered = Gathered {
            picked: Vec::new(),
            bytes: 0,
            leaves: Vec::new(),
            last: size.min(after + LOOKED_AT),
        };
        let mut next = first;
        while next <= gathered.end(size) {
            let before = next;
            next += self.gather(next, &rest, &mut gathered, (stretch, &wanted))?;
            if next == before {
                return Err(ProveError::Archived { seq: next });
            }
        }
        let Gathered {
            picked,
            leaves,
            last,
            ..
        } = gathered;
        let mut near = Near {
            at: first - 1,
            leaves,
            rest,
            known: HashMap::new(),
        };
        let lost = |error| self.lost(error);
        let root = tree::range_root(&mut near, 0, size).map_err(lost)?;
        let mut items = Vec::with_capacity(picked.len());
        for event in picked {
            let path = tree::inclusion(&mut near, event.seq - 1, size).map_err(lost)?;
            let item = ProvenEvent { event, path };
            if !item.leads_to((size, root)) {
                return Err(ProveError::Broken { size });
            }
            items.push(item);
        }
        let next = (last < size).then_some(last);
        Ok(ProvenPage { items, next })
    }

    /// Behind which event everything is proven without the archive.
    ///
    /// # Errors
    /// The storage can't be read.
    pub fn provable_after(&self) -> Result<u64, StoreError> {
        // Leaves of one block are needed for each other's paths.
        Ok((self.first_hot()? - 1).next_multiple_of(BLOCK))
    }

    /// Reads some events from `next` on, wherever they are; how many.
    fn gather(
        &self,
        next: u64,
        rest: &Leaves<'_>,
        gathered: &mut Gathered,
        (stretch, wanted): (&Stretch<'_>, &impl Fn(&Event) -> bool),
    ) -> Result<u64, ProveError> {
        let mut read = 0;
        let mut take = |event: Event| {
            if event.seq > gathered.end(stretch.size) {
                return ControlFlow::Break(());
            }
            read += 1;
            gathered.take(event, stretch, wanted);
            ControlFlow::Continue(())
        };
        let first_hot = self.first_hot()?;
        if next < first_hot {
            rest.read(next, first_hot - next, take)?;
        } else {
            for event in self.read(next, BATCH)? {
                if take(event).is_break() {
                    break;
                }
            }
        }
        Ok(read)
    }
}

/// What a stretch has, while it is read.
struct Gathered {
    picked: Vec<Event>,
    bytes: usize,
    leaves: Vec<Digest>,
    /// The last event of the page, unless the page is full before.
    last: u64,
}

impl Gathered {
    /// Where reading ends: with the block of the last event.
    fn end(&self, size: u64) -> u64 {
        size.min(self.last.next_multiple_of(BLOCK))
    }

    fn take(&mut self, event: Event, stretch: &Stretch<'_>, wanted: &impl Fn(&Event) -> bool) {
        self.leaves.push(tree::leaf(&event.hash));
        if event.seq <= stretch.after || event.seq > self.last || !wanted(&event) {
            return;
        }
        self.bytes += event.payload.as_str().len() + 2_048;
        if self.picked.len() + 1 >= stretch.limit.max(1) || self.bytes >= MAX_BYTES {
            self.last = event.seq;
        }
        self.picked.push(event);
    }
}

/// The tree, with the leaves around a page at hand, and what was read of the
/// rest: neighbours share nearly all of their paths.
struct Near<'l> {
    at: u64,
    leaves: Vec<Digest>,
    rest: Leaves<'l>,
    known: HashMap<(u8, u64, u64), Vec<Digest>>,
}

impl Near<'_> {
    fn at_hand(&self, positions: Range<u64>) -> Option<&[Digest]> {
        let from = usize::try_from(positions.start.checked_sub(self.at)?).ok()?;
        let to = usize::try_from(positions.end.checked_sub(self.at)?).ok()?;
        self.leaves.get(from..to)
    }
}

impl Subtrees for Near<'_> {
    type Error = StoreError;

    fn stored(&mut self, level: u8, position: u64, count: u64) -> Result<Vec<Digest>, StoreError> {
        if level == 0
            && let Some(leaves) = self.at_hand(position..position + count)
        {
            return Ok(leaves.to_vec());
        }
        let key = (level, position, count);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let stored = self.rest.stored(level, position, count)?;
        self.known.insert(key, stored.clone());
        Ok(stored)
    }
}
