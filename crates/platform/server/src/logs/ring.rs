//! The last lines of each instance, in memory, for those who look now.
//!
//! Everything has a bound, by instance and in all; what is over it goes, the
//! oldest first. What went is known by its newest time and its last number, so
//! that nobody takes a part for the whole. Never waits for anybody.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use fluffy_base::id::NodeId;

use super::LogLine;
use super::query::{Found, Query};
use super::segment::Source;

/// The most lines and bytes of one instance.
pub(super) const PER_INSTANCE: (usize, usize) = (10_000, 8 << 20);

/// The most bytes of all instances together.
pub(super) const IN_ALL: usize = 256 << 20;

/// What a line costs beside its text.
const OVERHEAD: usize = 192;

/// The last lines of all instances.
#[derive(Debug, Default)]
pub(super) struct Rings {
    pub(super) of: HashMap<Arc<str>, Ring>,
    pub(super) bytes: usize,
    writes: u64,
    gone: Gone,
    last_arrival: u64,
}

/// The last lines of one instance.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) lines: VecDeque<LogLine>,
    pub(super) bytes: usize,
    node: NodeId,
    source: Arc<Source>,
    gone: Gone,
    written: u64,
}

/// What is no longer here: nothing newer than this went.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gone {
    pub(super) newest_ms: u64,
    pub(super) last_arrival: u64,
}

impl Gone {
    fn learn(&mut self, line: &LogLine) {
        self.newest_ms = self.newest_ms.max(line.at_ms);
        self.last_arrival = self.last_arrival.max(line.arrival);
    }
}

impl Rings {
    /// Begins empty, after a store that has lines.
    pub(super) fn after(gone: Gone) -> Self {
        Self {
            gone,
            last_arrival: gone.last_arrival,
            ..Self::default()
        }
    }

    /// Adds a line that a node told.
    pub(super) fn push(&mut self, node: NodeId, line: LogLine) {
        self.writes += 1;
        self.last_arrival = self.last_arrival.max(line.arrival);
        let source = Arc::clone(&line.source);
        let ring = self.of.entry(Arc::clone(&line.instance));
        let ring = ring.or_insert_with(|| Ring {
            lines: VecDeque::new(),
            bytes: 0,
            node,
            source,
            gone: Gone::default(),
            written: 0,
        });
        ring.written = self.writes;
        let before = ring.bytes;
        ring.push(line);
        self.bytes = self.bytes + ring.bytes - before;
        while self.bytes > IN_ALL && self.of.len() > 1 {
            self.drop_quietest();
        }
    }

    fn drop_quietest(&mut self) {
        let quietest = self.of.iter().min_by_key(|(_, ring)| ring.written);
        if let Some(name) = quietest.map(|(name, _)| Arc::clone(name))
            && let Some(ring) = self.of.remove(&name)
        {
            self.bytes -= ring.bytes;
            for line in &ring.lines {
                self.gone.learn(line);
            }
            self.gone.newest_ms = self.gone.newest_ms.max(ring.gone.newest_ms);
            self.gone.last_arrival = self.gone.last_arrival.max(ring.gone.last_arrival);
        }
    }

    /// Whose lines an instance prints, if this node told some of them.
    pub(super) fn source(&self, node: NodeId, instance: &str) -> Option<Arc<Source>> {
        let ring = self.of.get(instance).filter(|ring| ring.node == node)?;
        Some(Arc::clone(&ring.source))
    }

    /// The lines that are asked for, and whether these are all that there were.
    pub(super) fn find(&self, query: &Query) -> (Found, bool) {
        let is_whole = |gone: &Gone| query.is_newer_than(gone.newest_ms, gone.last_arrival);
        let mut all = is_whole(&self.gone);
        let mut lines = Vec::new();
        for (instance, ring) in &self.of {
            if !query.is_of(&ring.source, instance) {
                continue;
            }
            all &= is_whole(&ring.gone);
            // The newest are at the end, and mostly those are wanted.
            let near = ring.lines.iter().rev();
            let near = near.take_while(|it| query.may_be_in((0, u64::MAX), (0, it.arrival)));
            let wanted = near.filter(|it| query.takes(&it.stream, it.at_ms, it.arrival));
            lines.extend(wanted.cloned());
        }
        (query.cut(lines, self.last_arrival), all)
    }
}

impl Ring {
    fn push(&mut self, line: LogLine) {
        self.bytes += cost(&line);
        self.lines.push_back(line);
        let (most, largest) = PER_INSTANCE;
        while self.lines.len() > most || self.bytes > largest {
            let Some(oldest) = self.lines.pop_front() else {
                return;
            };
            self.bytes -= cost(&oldest);
            self.gone.learn(&oldest);
        }
    }
}

fn cost(line: &LogLine) -> usize {
    line.text.len() + OVERHEAD
}
