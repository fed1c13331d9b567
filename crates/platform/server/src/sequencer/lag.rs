//! How long events took from their moment to the readers.
//!
//! Counts in buckets that grow by an eighth, so a percentile is right within
//! that; never allocates after it was made.

use std::sync::atomic::{AtomicU64, Ordering};

use fluffy_base::Timestamp;

/// Eight per doubling, from a microsecond to more than a day.
const BUCKETS: usize = 8 * 38;

/// Counts how late events were.
#[derive(Debug)]
pub struct Lag {
    counts: Box<[AtomicU64]>,
    longest: AtomicU64,
}

/// How late events were, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LagReport {
    /// How many events.
    pub events: u64,
    /// Half were not later than this.
    pub median: u64,
    /// One in a hundred was later than this.
    pub percentile_99: u64,
    /// None was later.
    pub longest: u64,
}

impl Default for Lag {
    fn default() -> Self {
        Self {
            counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            longest: AtomicU64::new(0),
        }
    }
}

impl Lag {
    /// Counts an event that readers see now.
    pub fn count(&self, occurred_at: Timestamp, now: Timestamp) {
        let micros = now.as_micros().saturating_sub(occurred_at.as_micros());
        let micros = u64::try_from(micros).unwrap_or(0);
        if let Some(bucket) = self.counts.get(bucket(micros)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.longest.fetch_max(micros, Ordering::Relaxed);
    }

    /// What was counted so far.
    #[must_use]
    pub fn report(&self) -> LagReport {
        let counts: Vec<u64> = self
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect();
        let events: u64 = counts.iter().sum();
        let longest = self.longest.load(Ordering::Relaxed);
        let at = |wanted: u64| {
            let mut seen = 0;
            let found = counts.iter().position(|count| {
                seen += count;
                seen >= wanted && seen > 0
            });
            found.map_or(0, |index| upper(index).min(longest))
        };
        LagReport {
            events,
            median: at(events.div_ceil(2)),
            percentile_99: at((events * 99).div_ceil(100)),
            longest,
        }
    }
}

/// The bucket of a duration: its power of two, and the eighth within it.
fn bucket(micros: u64) -> usize {
    if micros < 8 {
        return usize::try_from(micros).unwrap_or(0);
    }
    let power = micros.ilog2();
    let eighth = (micros >> (power - 3)) & 7;
    let index = u64::from(power - 2) * 8 + eighth;
    usize::try_from(index).map_or(BUCKETS - 1, |index| index.min(BUCKETS - 1))
}

/// The longest duration of a bucket.
fn upper(index: usize) -> u64 {
    let index = index as u64;
    if index < 8 {
        return index;
    }
    let (power, eighth) = (index / 8 + 2, index % 8);
    ((8 + eighth + 1) << (power - 3)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_in_the_bucket_that_ends_after_it() {
        for micros in (0..2_000).chain([5_000, 123_456, 3_600_000_000]) {
            let index = bucket(micros);
            assert!(upper(index) >= micros, "{micros}");
            assert!(index == 0 || upper(index - 1) < micros, "{micros}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_right_within_an_eighth() {
        let lag = Lag::default();
        assert_eq!(lag.report(), LagReport::default());
        for micros in 1..=1_000 {
            lag.count(Timestamp::from_micros(0), Timestamp::from_micros(micros));
        }
        let report = lag.report();
        assert_eq!((report.events, report.longest), (1_000, 1_000));
        assert!((500..563).contains(&report.median), "{report:?}");
        assert!((990..=1_000).contains(&report.percentile_99), "{report:?}");
    }
}
