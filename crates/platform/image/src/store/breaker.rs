//! Leaves a registry alone that fails again and again.
//!
//! Five failures in a row open it for a minute, and twice as long each time
//! after that, up to ten; when that is over, one attempt decides. Pure: the
//! time is given.

use std::time::{Duration, Instant};

const MOST_FAILURES: u32 = 5;
const SHORTEST: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(600);

/// What is known about one registry.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: u32,
    /// Until when nobody is let through, and how long that was.
    open: Option<(Instant, Duration)>,
    /// Since when somebody is trying whether it is over.
    trial: Option<Instant>,
}

impl Breaker {
    /// Lets an attempt through, or says how long there is none.
    pub(super) fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        let Some((until, wait)) = self.open else {
            return Ok(());
        };
        if now < until {
            return Err(until - now);
        }
        // Whoever was let through may have been stopped without a word.
        let lost = |since: Instant| now.saturating_duration_since(since) >= wait;
        match self.trial {
            Some(since) if !lost(since) => Err(SHORTEST.min(wait)),
            Some(_) | None => {
                self.trial = Some(now);
                Ok(())
            }
        }
    }

    /// It answered, whatever it said.
    pub(super) fn answered(&mut self) {
        *self = Self::default();
    }

    /// It did not answer, or could not.
    pub(super) fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        let wait = match self.open {
            // Those that began before it opened say nothing new.
            Some(_) if self.trial.is_none() => return,
            Some((_, wait)) => (wait * 2).min(LONGEST),
            None if self.failures < MOST_FAILURES => return,
            None => SHORTEST,
        };
        self.trial = None;
        self.open = Some((now + wait, wait));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    #[test]
    fn five_failures_in_a_row_open_it_and_an_answer_closes_it() {
        let (start, mut breaker) = (Instant::now(), Breaker::default());
        for _ in 0..4 {
            breaker.failed(start);
        }
        breaker.answered();
        for _ in 0..4 {
            breaker.failed(start);
            assert_eq!(breaker.admit(start), Ok(()));
        }
        breaker.failed(start);
        assert_eq!(breaker.admit(start), Err(seconds(60)));
        assert_eq!(breaker.admit(start + seconds(59)), Err(seconds(1)));
    }

    #[test]
    fn one_trial_decides_and_each_failure_doubles_the_wait() {
        let (mut now, mut breaker) = (Instant::now(), Breaker::default());
        for _ in 0..5 {
            breaker.failed(now);
        }
        for wait in [60, 120, 240, 480, 600, 600] {
            // A late answer of somebody who began earlier changes nothing.
            breaker.failed(now);
            assert!(breaker.admit(now + seconds(wait - 1)).is_err(), "{wait}");
            now += seconds(wait);
            assert_eq!(breaker.admit(now), Ok(()), "{wait}");
            assert!(breaker.admit(now).is_err(), "a second one at {wait}");
            breaker.failed(now);
        }
        now += seconds(600);
        assert_eq!(breaker.admit(now), Ok(()));
        // That one was lost; after as long again another is let through.
        assert!(breaker.admit(now + seconds(599)).is_err());
        assert_eq!(breaker.admit(now + seconds(600)), Ok(()));
        breaker.answered();
        assert_eq!(breaker.admit(now), Ok(()));
        assert_eq!(breaker.admit(now), Ok(()));
    }
}
