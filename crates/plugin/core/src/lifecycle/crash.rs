//! How often a plugin may crash, and how long to wait before the next start.
//!
//! Times are given in, never read. A clock that goes back makes nobody
//! younger: what seems to lie in the future counts as now.

use fluffy_base::{Span, Timestamp};

/// So many crashes within [`WINDOW`] switch a plugin off.
pub const CRASHES: usize = 5;

/// The time that crashes count for.
pub const WINDOW: Span = Span { millis: 600_000 };

const FIRST_WAIT: u64 = 500;

/// What to do after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Start it again, after this long.
    Restart {
        /// How long.
        after: Span,
    },
    /// Leave it off until a person switches it on.
    Disable,
}

/// The crashes of one plugin that still count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Crashes {
    times: Vec<Timestamp>,
}

impl Crashes {
    /// Counts a crash.
    pub fn crashed(&mut self, now: Timestamp) -> Verdict {
        let window = i128::from(WINDOW.millis) * 1_000;
        let age = |time: &Timestamp| i128::from(now.as_micros()) - i128::from(time.as_micros());
        self.times.retain(|time| age(time) < window);
        self.times.push(now);
        let count = self.times.len();
        if count >= CRASHES {
            return Verdict::Disable;
        }
        let doubled = FIRST_WAIT << count.saturating_sub(1);
        Verdict::Restart {
            after: Span { millis: doubled },
        }
    }

    /// Forgets everything: a person switched it on again.
    pub fn forget(&mut self) {
        self.times.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn after(millis: u64) -> Verdict {
        Verdict::Restart {
            after: Span { millis },
        }
    }

    #[test]
    fn five_crashes_in_ten_minutes_switch_it_off() {
        let mut crashes = Crashes::default();
        let verdicts: Vec<Verdict> = [0, 100, 200, 300, 599]
            .map(|s| crashes.crashed(at(s)))
            .into();
        assert_eq!(
            verdicts,
            [
                after(500),
                after(1_000),
                after(2_000),
                after(4_000),
                Verdict::Disable
            ]
        );
        crashes.forget();
        assert_eq!(crashes.crashed(at(600)), after(500));
    }

    #[test]
    fn old_crashes_count_no_more() {
        let mut crashes = Crashes::default();
        for seconds in [0, 1, 2, 3] {
            crashes.crashed(at(seconds));
        }
        // The first has gone; the other three and this one count.
        assert_eq!(crashes.crashed(at(600)), after(4_000));
        assert_eq!(crashes.crashed(at(1_300)), after(500));
    }

    #[test]
    fn a_clock_that_goes_back_hides_no_crash() {
        let mut crashes = Crashes::default();
        for seconds in [5_000, 4_000, 3_000, 2_000] {
            crashes.crashed(at(seconds));
        }
        assert_eq!(crashes.crashed(at(0)), Verdict::Disable);
    }

    proptest! {
        #[test]
        fn it_is_off_exactly_when_the_window_is_full(mut seconds in prop::collection::vec(0i64..3_000, 1..40)) {
            seconds.sort_unstable();
            let mut crashes = Crashes::default();
            for (index, now) in seconds.iter().enumerate() {
                let recent = seconds[..=index].iter().filter(|time| now - *time < 600).count();
                let off = crashes.crashed(at(*now)) == Verdict::Disable;
                prop_assert_eq!(off, recent >= CRASHES);
            }
        }
    }
}
