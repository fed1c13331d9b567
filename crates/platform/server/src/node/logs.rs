//! What workloads printed lately: the last lines of each instance, in memory.
//!
//! Entries come at least once and are kept once. Everything has a bound, by
//! instance and in all; what is over it goes, the oldest first, and printing
//! never waits for reading.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fluffy_api::node::{MAX_LOG_LINE, v1};
use tokio::sync::broadcast;

/// The most lines and bytes of one instance.
const PER_INSTANCE: (usize, usize) = (10_000, 8 << 20);

/// The most bytes of all instances together.
const IN_ALL: usize = 256 << 20;

/// The streams of one instance, over its last boots, whose numbers are known.
const MAX_STREAMS: usize = 32;

/// How many lines a follower may be behind before it misses some.
const FOLLOWING: usize = 1024;

/// What a line costs beside its text.
const OVERHEAD: usize = 128;

/// One line that an instance printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Who printed it.
    pub instance: Arc<str>,
    /// In which of its boots.
    pub boot: Arc<str>,
    /// `stdout`, `stderr` or `init`.
    pub stream: Arc<str>,
    /// Its number in that stream.
    pub seq: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// What.
    pub text: Arc<str>,
    /// Whether it was longer.
    pub truncated: bool,
    /// How many lines were lost before it.
    pub dropped: u64,
}

/// What somebody has had of each boot and stream of instances.
#[derive(Debug, Default)]
pub struct Had(HashMap<(String, String, String), u64>);

impl Had {
    /// Whether a line is new to them; it no longer is.
    pub fn is_new(&mut self, instance: &str, boot: &str, stream: &str, seq: u64) -> bool {
        let key = (instance.to_owned(), boot.to_owned(), stream.to_owned());
        let last = self.0.entry(key).or_default();
        let is_new = seq > *last;
        *last = seq.max(*last);
        is_new
    }
}

/// The last lines of all instances.
#[derive(Debug)]
pub struct Logs {
    rings: Mutex<Rings>,
    live: broadcast::Sender<LogLine>,
}

#[derive(Debug, Default)]
struct Rings {
    of: HashMap<Arc<str>, Ring>,
    bytes: usize,
    writes: u64,
}

#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<LogLine>,
    bytes: usize,
    /// The last number of each boot and stream, the newest last.
    seen: Vec<(Arc<str>, Arc<str>, u64)>,
    written: u64,
}

impl Default for Logs {
    fn default() -> Self {
        Self {
            rings: Mutex::default(),
            live: broadcast::Sender::new(FOLLOWING),
        }
    }
}

impl Logs {
    /// Keeps entries that are not there yet.
    pub(super) fn keep(&self, entries: Vec<v1::LogEntry>) {
        let mut rings = self.lock();
        for entry in entries {
            if let Some(line) = rings.keep(entry) {
                // Nobody may be following.
                let _ = self.live.send(line);
            }
        }
    }

    /// The lines that are kept of an instance, the oldest first.
    #[must_use]
    pub fn of(&self, instance: &str) -> Vec<LogLine> {
        let rings = self.lock();
        let lines = rings.of.get(instance).into_iter();
        lines.flat_map(|ring| ring.lines.iter().cloned()).collect()
    }

    /// All lines from now on, of all instances.
    #[must_use]
    pub fn follow(&self) -> broadcast::Receiver<LogLine> {
        self.live.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rings {
    fn keep(&mut self, entry: v1::LogEntry) -> Option<LogLine> {
        self.writes += 1;
        let instance: Arc<str> = entry.instance_id.as_str().into();
        let ring = self.of.entry(Arc::clone(&instance)).or_default();
        let (boot, stream) = ring.next(&entry)?;
        ring.written = self.writes;
        let cut = entry.line.floor_char_boundary(MAX_LOG_LINE);
        let (text, _) = entry.line.split_at_checked(cut)?;
        let line = LogLine {
            instance,
            boot,
            stream,
            seq: entry.seq,
            at_ms: entry.at_ms,
            text: text.into(),
            truncated: entry.truncated || cut < entry.line.len(),
            dropped: entry.dropped,
        };
        let before = ring.bytes;
        ring.push(line.clone());
        self.bytes = self.bytes + ring.bytes - before;
        while self.bytes > IN_ALL && self.of.len() > 1 {
            self.drop_quietest();
        }
        Some(line)
    }

    fn drop_quietest(&mut self) {
        let quietest = self.of.iter().min_by_key(|(_, ring)| ring.written);
        if let Some(name) = quietest.map(|(name, _)| Arc::clone(name))
            && let Some(ring) = self.of.remove(&name)
        {
            self.bytes -= ring.bytes;
        }
    }
}

impl Ring {
    /// The boot and stream of an entry, if it is not there already.
    fn next(&mut self, entry: &v1::LogEntry) -> Option<(Arc<str>, Arc<str>)> {
        let same = |(boot, stream, _): &&mut (Arc<str>, Arc<str>, u64)| {
            **boot == *entry.boot_id && **stream == *entry.stream
        };
        if let Some((boot, stream, last)) = self.seen.iter_mut().find(same) {
            let fresh = entry.seq > *last;
            *last = entry.seq.max(*last);
            return fresh.then(|| (Arc::clone(boot), Arc::clone(stream)));
        }
        if self.seen.len() >= MAX_STREAMS {
            self.seen.remove(0);
        }
        let (boot, stream): (Arc<str>, Arc<str>) =
            (entry.boot_id.as_str().into(), entry.stream.as_str().into());
        self.seen
            .push((Arc::clone(&boot), Arc::clone(&stream), entry.seq));
        Some((boot, stream))
    }

    fn push(&mut self, line: LogLine) {
        self.bytes += cost(&line);
        self.lines.push_back(line);
        let (most, largest) = PER_INSTANCE;
        while self.lines.len() > most || self.bytes > largest {
            let Some(oldest) = self.lines.pop_front() else {
                return;
            };
            self.bytes -= cost(&oldest);
        }
    }
}

fn cost(line: &LogLine) -> usize {
    line.text.len() + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(instance: &str, seq: u64, line: &str) -> v1::LogEntry {
        v1::LogEntry {
            instance_id: instance.to_owned(),
            boot_id: "boot".to_owned(),
            stream: "stdout".to_owned(),
            seq,
            line: line.to_owned(),
            ..Default::default()
        }
    }

    fn texts(logs: &Logs, instance: &str) -> Vec<String> {
        let lines = logs.of(instance);
        lines.iter().map(|line| line.text.to_string()).collect()
    }

    #[test]
    fn what_comes_twice_is_kept_once() {
        let logs = Logs::default();
        let mut following = logs.follow();
        logs.keep(vec![entry("a", 1, "one"), entry("a", 2, "two")]);
        logs.keep(vec![entry("a", 2, "two"), entry("a", 3, "three")]);
        let mut other = entry("a", 1, "again");
        other.boot_id = "later boot".to_owned();
        logs.keep(vec![other, entry("b", 1, "another")]);
        assert_eq!(texts(&logs, "a"), ["one", "two", "three", "again"]);
        assert_eq!(texts(&logs, "b"), ["another"]);
        assert!(texts(&logs, "nobody").is_empty());
        let mut followed = Vec::new();
        while let Ok(line) = following.try_recv() {
            followed.push(line.text.to_string());
        }
        assert_eq!(followed, ["one", "two", "three", "again", "another"]);
    }

    #[test]
    fn a_follower_has_every_line_once() {
        let logs = Logs::default();
        let mut had = Had::default();
        let mut next = |logs: &Logs| {
            let mut lines = logs.of("a");
            lines.retain(|line| had.is_new("a", &line.boot, &line.stream, line.seq));
            let texts = lines.iter().map(|line| line.text.to_string());
            texts.collect::<Vec<_>>()
        };
        logs.keep(vec![entry("a", 1, "one"), entry("b", 1, "other")]);
        assert_eq!(next(&logs), ["one"]);
        assert!(next(&logs).is_empty());
        let mut later = entry("a", 1, "of a later boot");
        later.boot_id = "later".to_owned();
        logs.keep(vec![entry("a", 2, "two"), later, entry("a", 3, "three")]);
        assert_eq!(next(&logs), ["two", "of a later boot", "three"]);
    }

    #[test]
    fn everything_has_a_bound() {
        let logs = Logs::default();
        let long = "é".repeat(MAX_LOG_LINE);
        for seq in 1..=20_000 {
            logs.keep(vec![entry("many", seq, "x")]);
        }
        assert_eq!(texts(&logs, "many").len(), PER_INSTANCE.0);
        logs.keep(vec![entry("long", 1, &long)]);
        let line = &logs.of("long")[0];
        assert!(line.truncated && line.text.len() <= MAX_LOG_LINE);
        for instance in 0..40 {
            for seq in 1..=520 {
                let text = &long[..MAX_LOG_LINE];
                logs.keep(vec![entry(&instance.to_string(), seq, text)]);
            }
        }
        let rings = logs.lock();
        assert!(rings.bytes <= IN_ALL, "{}", rings.bytes);
        let counted: usize = rings.of.values().map(|ring| ring.bytes).sum();
        assert_eq!(rings.bytes, counted);
        assert!(!rings.of.contains_key("many"), "the quietest goes first");
        assert!(rings.of.values().all(|ring| ring.bytes <= PER_INSTANCE.1));
    }
}
