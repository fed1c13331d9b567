//! What came already, and what an org may still print today.
//!
//! Entries come at least once and are counted once, by the number that each
//! has in its stream. Over its daily share of bytes an org keeps every tenth
//! line, and the next one that is kept says how many were not. Nothing counts
//! before it is durable: what was counted is only taken over then. Pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fluffy_api::node::{MAX_LOG_LINE, v1};
use fluffy_base::id::{NodeId, OrgId};

use super::segment::Source;
use super::store::day;
use super::{LogLine, Printer};

/// The streams whose numbers are known; the quietest are forgotten first.
const MAX_STREAMS: usize = 65_536;

/// Over its share an org keeps one line of so many.
const SAMPLE: u64 = 10;

/// An instance, its boot and its stream.
type Key = (Arc<str>, Arc<str>, Arc<str>);

/// What is known of one stream.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    /// Its last number.
    pub(super) seq: u64,
    /// When it came.
    pub(super) arrival: u64,
    /// Lines that were left out since the last one that was kept.
    pub(super) lost: u64,
}

/// What came, and from whom.
#[derive(Debug, Default)]
pub(super) struct Counter {
    pub(super) streams: HashMap<Key, Seen>,
    pub(super) last_arrival: u64,
    /// The day that bytes are counted of.
    pub(super) today: u64,
    /// Bytes of each org on that day: here, and as other replicas said.
    pub(super) orgs: BTreeMap<OrgId, Bytes>,
}

/// What an org printed on a day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bytes {
    pub(super) here: u64,
    pub(super) elsewhere: u64,
}

/// What a batch adds, once it is durable.
#[derive(Debug, Default)]
pub(super) struct Counted {
    /// The lines to keep, and who told them.
    pub(super) lines: Vec<LogLine>,
    pub(super) nodes: Vec<NodeId>,
    streams: HashMap<Key, Seen>,
    bytes: BTreeMap<OrgId, u64>,
}

impl Counter {
    /// The day of this time begins, if it has not yet.
    pub(super) fn turn(&mut self, now_ms: u64) {
        if self.today != day(now_ms) {
            self.today = day(now_ms);
            self.orgs.clear();
        }
    }

    /// What of an entry is new is added to a batch.
    pub(super) fn count(
        &self,
        counted: &mut Counted,
        (node, printer): (NodeId, &Printer),
        entry: v1::LogEntry,
    ) {
        let key = self.key(counted, &entry);
        let known = counted.streams.get(&key).or_else(|| self.streams.get(&key));
        let mut seen = known.copied().unwrap_or_default();
        if known.is_some() && entry.seq <= seen.seq {
            return;
        }
        seen.seq = entry.seq;
        let org = printer.source.org;
        let before = self.orgs.get(&org).copied().unwrap_or_default();
        let added = counted.bytes.entry(org).or_default();
        let used = before.here.saturating_add(before.elsewhere);
        let length = entry.line.len() as u64;
        let over = used.saturating_add(*added).saturating_add(length) > printer.daily;
        let dropped = entry.dropped.saturating_add(seen.lost);
        if over && !entry.seq.is_multiple_of(SAMPLE) {
            seen.lost = dropped.saturating_add(1);
            counted.streams.insert(key, seen);
            return;
        }
        *added += length;
        let arrival = self.last_arrival + counted.lines.len() as u64 + 1;
        seen = Seen {
            arrival,
            lost: 0,
            ..seen
        };
        let (instance, boot, stream) = key.clone();
        counted.streams.insert(key, seen);
        let source = match counted.lines.last() {
            Some(last) if *last.source == *printer.source => Arc::clone(&last.source),
            _ => Arc::clone(&printer.source),
        };
        let line = line((instance, boot, stream), entry, (source, arrival), dropped);
        counted.lines.push(line);
        counted.nodes.push(node);
    }

    /// The key of an entry; its texts are those that are there already.
    fn key(&self, counted: &Counted, entry: &v1::LogEntry) -> Key {
        if let Some(last) = counted.lines.last()
            && *last.instance == *entry.instance_id
            && *last.boot == *entry.boot_id
            && *last.stream == *entry.stream
        {
            let LogLine {
                instance,
                boot,
                stream,
                ..
            } = last.clone();
            return (instance, boot, stream);
        }
        let key: Key = (
            entry.instance_id.as_str().into(),
            entry.boot_id.as_str().into(),
            entry.stream.as_str().into(),
        );
        let known = self.streams.get_key_value(&key);
        known.map_or(key, |(known, _)| known.clone())
    }

    /// Takes over what is durable now.
    pub(super) fn commit(&mut self, counted: &mut Counted) {
        self.last_arrival += counted.lines.len() as u64;
        self.streams.extend(std::mem::take(&mut counted.streams));
        for (org, bytes) in std::mem::take(&mut counted.bytes) {
            let used = self.orgs.entry(org).or_default();
            used.here = used.here.saturating_add(bytes);
        }
        if self.streams.len() > MAX_STREAMS {
            let mut arrivals: Vec<u64> = self.streams.values().map(|it| it.arrival).collect();
            let (_, middle, _) = arrivals.select_nth_unstable(MAX_STREAMS / 4);
            let middle = *middle;
            self.streams.retain(|_, it| it.arrival > middle);
        }
    }
}

fn line(
    (instance, boot, stream): Key,
    entry: v1::LogEntry,
    (source, arrival): (Arc<Source>, u64),
    dropped: u64,
) -> LogLine {
    let cut = entry.line.floor_char_boundary(MAX_LOG_LINE);
    let text = entry.line.get(..cut).unwrap_or_default();
    LogLine {
        source,
        instance,
        boot,
        stream,
        seq: entry.seq,
        arrival,
        at_ms: entry.at_ms,
        text: text.into(),
        truncated: entry.truncated || cut < entry.line.len(),
        dropped,
    }
}
