//! How long events took from their moment to the readers, lately.
//!
//! Counts in buckets that grow by an eighth, so a percentile is right within
//! that; never allocates after it was made. What is shown is of the last
//! moments: a server that ran well for a month and lags now says so.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fluffy_base::Timestamp;

/// Eight per doubling, from a microsecond to more than a day.
const BUCKETS: usize = 8 * 38;
/// How long a window is; the current one and the one before are looked at. One
/// late event is forgotten before anybody is woken for a minute of them.
const WINDOW: Duration = Duration::from_secs(15);

/// Counts how late events were.
#[derive(Debug)]
pub struct Lag {
    began: Instant,
    counted: Mutex<Counted>,
}

#[derive(Debug)]
struct Counted {
    events: u64,
    windows: [Window; 2],
}

/// What was counted in one window.
#[derive(Debug)]
struct Window {
    /// Which one it is, from the first.
    number: u64,
    counts: Box<[u64]>,
    longest: u64,
}

/// How late events were, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LagReport {
    /// How many events there were since the start.
    pub events: u64,
    /// Half of the last ones were not later than this.
    pub median: u64,
    /// One in a hundred of the last ones was later than this.
    pub percentile_99: u64,
    /// None of the last ones was later.
    pub longest: u64,
}

impl Default for Lag {
    fn default() -> Self {
        let window = || Window {
            number: 0,
            counts: vec![0; BUCKETS].into(),
            longest: 0,
        };
        Self {
            began: Instant::now(),
            counted: Mutex::new(Counted {
                events: 0,
                windows: [window(), window()],
            }),
        }
    }
}

impl Lag {
    /// Counts an event that readers see now.
    pub fn count(&self, occurred_at: Timestamp, now: Timestamp) {
        let micros = now.as_micros().saturating_sub(occurred_at.as_micros());
        let micros = u64::try_from(micros).unwrap_or(0);
        self.lock().count(micros, self.window());
    }

    /// What was counted lately.
    #[must_use]
    pub fn report(&self) -> LagReport {
        self.lock().report(self.window())
    }

    fn window(&self) -> u64 {
        self.began.elapsed().as_secs() / WINDOW.as_secs()
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counted {
    fn count(&mut self, micros: u64, number: u64) {
        self.events += 1;
        let [even, odd] = &mut self.windows;
        let window = if number.is_multiple_of(2) { even } else { odd };
        if window.number != number {
            window.counts.fill(0);
            (window.number, window.longest) = (number, 0);
        }
        if let Some(count) = window.counts.get_mut(bucket(micros)) {
            *count += 1;
        }
        window.longest = window.longest.max(micros);
    }

    fn report(&self, number: u64) -> LagReport {
        let lately = self.windows.iter().filter(|it| it.number + 1 >= number);
        let longest = lately.clone().map(|it| it.longest).max().unwrap_or(0);
        let count = |index: usize| -> u64 {
            let counts = lately.clone().filter_map(|it| it.counts.get(index));
            counts.sum()
        };
        let all: u64 = (0..BUCKETS).map(count).sum();
        let at = |wanted: u64| {
            let mut seen = 0;
            let found = (0..BUCKETS).find(|index| {
                seen += count(*index);
                seen >= wanted && seen > 0
            });
            found.map_or(0, |index| upper(index).min(longest))
        };
        LagReport {
            events: self.events,
            median: at(all.div_ceil(2)),
            percentile_99: at((all * 99).div_ceil(100)),
            longest,
        }
    }
}

impl LagReport {
    /// The same of readers who may not see what is older than this.
    #[must_use]
    pub(super) fn behind(self, age: Duration) -> Self {
        let least = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        Self {
            events: self.events,
            median: self.median.max(least),
            percentile_99: self.percentile_99.max(least),
            longest: self.longest.max(least),
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

    /// However long all went well before, and however bad it was.
    #[test]
    fn percentiles_are_of_the_last_moments() {
        let lag = Lag::default();
        let mut counted = lag.lock();
        for _ in 0..1_000_000 {
            counted.count(10, 0);
        }
        for _ in 0..100 {
            counted.count(7_000_000, 2);
        }
        let bad = counted.report(3);
        assert!(
            bad.median >= 7_000_000 && bad.events == 1_000_100,
            "{bad:?}"
        );
        counted.count(20, 4);
        let good = counted.report(4);
        assert_eq!((good.percentile_99, good.longest), (20, 20));
        // Nothing came since: nothing was late.
        assert_eq!(counted.report(6).percentile_99, 0);
        // Nobody knows what there is: it may be as late as the last look.
        let cut = counted.report(6).behind(Duration::from_secs(9));
        assert_eq!((cut.median, cut.percentile_99), (9_000_000, 9_000_000));
    }
}
