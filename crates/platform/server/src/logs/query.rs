//! Which lines are asked for, and where somebody who follows them is.
//!
//! A store counts its lines as they come; a cursor is how far somebody is in
//! each store, so that they go on exactly there, on any replica. Pure.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::str::FromStr;

use fluffy_base::id::EnvId;
use serde::{Deserialize, Serialize};

use super::LogLine;
use super::segment::Source;

/// The most stores that one cursor names.
const MOST_STORES: usize = 64;

/// The most separate runs of numbers that are remembered of one stream.
const MOST_RUNS: usize = 1_000;

/// The most text of one answer: nobody has as much of it in memory at once as
/// they like, by long lines. A line that goes over it is still told.
pub(crate) const MOST_TEXT: usize = 8 << 20;

/// Which lines are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// Of which env.
    pub env: EnvId,
    /// Only of this process type.
    pub process: Option<String>,
    /// Only of this instance.
    pub instance: Option<String>,
    /// Only of this stream, as the interface names it.
    pub stream: Option<String>,
    /// From then on, in milliseconds since 1970.
    pub since_ms: u64,
    /// Until then.
    pub until_ms: u64,
    /// At most so many.
    pub most: usize,
    /// And no more once they have this many bytes of text.
    pub most_bytes: usize,
    /// Which of them, and in which order.
    pub order: Order,
}

/// Which lines, if there are more than are wanted, and in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The last ones, by their time.
    Time,
    /// The last ones that came, in the order in which they did.
    Arrival,
    /// The first ones that came after this one, in the order in which they did.
    After(u64),
}

/// Lines that were found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// The lines.
    pub lines: Vec<LogLine>,
    /// The arrival up to which there is nothing more to find.
    pub through: u64,
}

impl Query {
    pub(super) fn is_of(&self, source: &Source, instance: &str) -> bool {
        let process = self.process.as_deref();
        source.env == self.env
            && process.is_none_or(|name| name == source.process)
            && self.instance.as_deref().is_none_or(|id| id == instance)
    }

    pub(super) fn takes(&self, stream: &str, at_ms: u64, arrival: u64) -> bool {
        let name = self.stream.as_deref();
        (self.since_ms..=self.until_ms).contains(&at_ms)
            && name.is_none_or(|name| name == stream_of(stream))
            && self.after().is_none_or(|after| arrival > after)
    }

    /// Whether some of these may be wanted.
    pub(super) fn may_be_in(&self, times: (u64, u64), arrivals: (u64, u64)) -> bool {
        times.1 >= self.since_ms
            && times.0 <= self.until_ms
            && self.after().is_none_or(|after| arrivals.1 > after)
    }

    /// Whether all that is wanted is newer than what went: the newest time of
    /// it, and the last that came.
    pub(super) fn is_newer_than(&self, newest_ms: u64, last_arrival: u64) -> bool {
        newest_ms < self.since_ms || self.after().is_some_and(|after| last_arrival <= after)
    }

    fn after(&self) -> Option<u64> {
        match self.order {
            Order::After(after) => Some(after),
            Order::Time | Order::Arrival => None,
        }
    }

    /// Puts pieces in the order in which they are best looked through, by
    /// their newest time and their first arrival.
    pub(super) fn arrange<T>(&self, pieces: &mut [T], of: impl Fn(&T) -> (u64, u64)) {
        pieces.sort_by_key(|it| of(it).1);
        match self.order {
            Order::After(_) => {}
            Order::Arrival => pieces.reverse(),
            Order::Time => pieces.sort_by_key(|it| std::cmp::Reverse(of(it).0)),
        }
    }

    /// Whether nothing in a piece can be among the lines that are wanted. Lets
    /// those go that are not, so that they never pile up.
    pub(super) fn has_enough(
        &self,
        lines: &mut Vec<LogLine>,
        (newest_ms, arrivals): (u64, (u64, u64)),
    ) -> bool {
        let twice = (
            self.most.saturating_mul(2),
            self.most_bytes.saturating_mul(2),
        );
        if lines.len() > twice.0 || text_of(lines) > twice.1 {
            self.limit(lines);
        }
        if !self.is_full(lines) {
            return false;
        }
        match self.order {
            Order::Time => {
                self.limit(lines);
                lines.first().is_some_and(|it| newest_ms < it.at_ms)
            }
            Order::Arrival => {
                self.limit(lines);
                lines.first().is_some_and(|it| arrivals.1 < it.arrival)
            }
            Order::After(_) => {
                self.limit(lines);
                lines.last().is_some_and(|it| arrivals.0 > it.arrival)
            }
        }
    }

    fn limit(&self, lines: &mut Vec<LogLine>) {
        match self.order {
            Order::Time => lines.sort_by_key(|it| (it.at_ms, it.arrival)),
            Order::Arrival | Order::After(_) => lines.sort_by_key(|it| it.arrival),
        }
        let most = (self.most, self.most_bytes);
        match self.order {
            Order::After(_) => {
                let kept = fitting(lines.iter().map(|it| it.text.len()), most);
                lines.truncate(kept);
            }
            Order::Time | Order::Arrival => {
                let kept = fitting(lines.iter().rev().map(|it| it.text.len()), most);
                lines.drain(..lines.len().saturating_sub(kept));
            }
        }
    }

    /// Whether these are as many as are wanted, or as long. Those that went
    /// over the bound are among them, so what was left out is known by that.
    fn is_full(&self, lines: &[LogLine]) -> bool {
        lines.len() >= self.most || text_of(lines) >= self.most_bytes
    }

    /// The wanted ones of all that match, in a store that has had this many.
    pub(super) fn cut(&self, mut lines: Vec<LogLine>, last_arrival: u64) -> Found {
        self.limit(&mut lines);
        // Some may have been left out before, so as not to look at them at all.
        let is_cut = matches!(self.order, Order::After(_)) && self.is_full(&lines);
        let through = match lines.last() {
            Some(last) if is_cut => last.arrival,
            _ => last_arrival,
        };
        Found { lines, through }
    }
}

/// How many lines of these lengths are told, the first ones: at most so many,
/// and none behind the one that has as many bytes full.
pub(crate) fn fitting(
    lengths: impl Iterator<Item = usize>,
    (most, most_bytes): (usize, usize),
) -> usize {
    let mut bytes = 0_usize;
    let fits = lengths.take(most).take_while(|length| {
        let has_room = bytes < most_bytes;
        bytes = bytes.saturating_add(*length);
        has_room
    });
    fits.count()
}

fn text_of(lines: &[LogLine]) -> usize {
    lines.iter().map(|it| it.text.len()).sum()
}

/// The stream of a line, as the interface names it.
#[must_use]
pub fn stream_of(name: &str) -> &'static str {
    match name {
        "stdout" => "stdout",
        "stderr" => "stderr",
        _ => "platform",
    }
}

/// How far somebody is in each store.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(BTreeMap<String, u64>);

/// Why a text is no cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not where a stream of logs was")]
pub struct ParseCursorError;

impl Cursor {
    /// How far they are in a store.
    #[must_use]
    pub fn of(&self, store: &str) -> u64 {
        self.0.get(store).copied().unwrap_or(0)
    }

    /// Goes on in a store; never back.
    pub fn advance(&mut self, store: &str, arrival: u64) {
        // A replica of an earlier version does not say which it is.
        if is_store_id(store) && (self.0.len() < MOST_STORES || self.0.contains_key(store)) {
            let at = self.0.entry(store.to_owned()).or_default();
            *at = arrival.max(*at);
        }
    }

    /// Goes on in every store, as far as another cursor is.
    pub fn join(&mut self, other: &Self) {
        for (store, arrival) in &other.0 {
            self.advance(store, *arrival);
        }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (store, arrival)) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma}{store}.{arrival}")?;
        }
        Ok(())
    }
}

impl FromStr for Cursor {
    type Err = ParseCursorError;

    fn from_str(text: &str) -> Result<Self, ParseCursorError> {
        let mut cursor = BTreeMap::new();
        for place in text.split(',').filter(|place| !place.is_empty()) {
            let (store, arrival) = place.split_once('.').ok_or(ParseCursorError)?;
            let arrival = arrival.parse().map_err(|_| ParseCursorError)?;
            if !is_store_id(store) || cursor.len() >= MOST_STORES {
                return Err(ParseCursorError);
            }
            cursor.insert(store.to_owned(), arrival);
        }
        Ok(Self(cursor))
    }
}

/// A name for a store that no other has.
pub(super) fn new_store_id() -> io::Result<String> {
    let mut bits = [0; 8];
    getrandom::fill(&mut bits).map_err(io::Error::other)?;
    Ok(format!("{:016x}", u64::from_le_bytes(bits)))
}

pub(super) fn is_store_id(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What somebody has had of each boot and stream of instances.
#[derive(Debug, Default)]
pub struct Had(HashMap<(String, String, String), BTreeMap<u64, u64>>);

impl Had {
    /// Whether a line is new to them; it no longer is.
    pub fn is_new(&mut self, instance: &str, boot: &str, stream: &str, seq: u64) -> bool {
        let key = (instance.to_owned(), boot.to_owned(), stream.to_owned());
        // Runs of numbers, by the first, with the last of each.
        let runs = self.0.entry(key).or_default();
        let before = runs
            .range(..=seq)
            .next_back()
            .map(|(first, last)| (*first, *last));
        if before.is_some_and(|(_, last)| last >= seq) {
            return false;
        }
        let first = match before {
            Some((first, last)) if last.checked_add(1) == Some(seq) => first,
            _ => seq,
        };
        let after = seq.checked_add(1).and_then(|next| runs.remove(&next));
        runs.insert(first, after.unwrap_or(seq));
        if runs.len() > MOST_RUNS
            && let Some((first, _)) = runs.pop_first()
            && let Some((_, last)) = runs.pop_first()
        {
            runs.insert(first, last);
        }
        true
    }
}

/// Somebody who follows lines.
#[derive(Debug, Default)]
pub struct Follower {
    /// What they have had.
    pub had: Had,
    /// Where they are; none before they had anything.
    pub at: Option<Cursor>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_never_goes_back() {
        let (one, other) = ("00000000000000aa", "00000000000000bb");
        let mut cursor = Cursor::default();
        cursor.advance(one, 7);
        cursor.advance(other, 9);
        cursor.advance(one, 3);
        cursor.advance("", 3);
        assert_eq!(cursor.to_string(), format!("{one}.7,{other}.9"));
        assert_eq!(cursor.to_string().parse(), Ok(cursor.clone()));
        assert_eq!((cursor.of(one), cursor.of("unknown")), (7, 0));
        let all = [
            "7",
            "x.7",
            "00000000000000aa",
            "00000000000000aa.-1",
            "00000000000000aa.x",
        ];
        for wrong in all {
            assert_eq!(wrong.parse::<Cursor>(), Err(ParseCursorError), "{wrong}");
        }
        let many: Vec<String> = (0..65).map(|n| format!("{n:016x}.1")).collect();
        assert_eq!(many.join(",").parse::<Cursor>(), Err(ParseCursorError));
    }

    #[test]
    fn each_number_is_new_once_in_any_order() {
        let mut had = Had::default();
        let mut seen = std::collections::BTreeSet::new();
        let mut number = 1_u64;
        for _ in 0..5_000 {
            number = number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let seq = (number >> 33) % 700;
            assert_eq!(had.is_new("i", "b", "s", seq), seen.insert(seq), "{seq}");
        }
        assert!(had.is_new("i", "b", "other", 1), "another stream");
        assert!(had.is_new("i", "b", "s", u64::MAX));
        assert!(!had.is_new("i", "b", "s", u64::MAX));
    }
}
