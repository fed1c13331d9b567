//! Who is well enough for new connections.
//!
//! Out after three probes that failed, in after two that did not; two failed
//! connections in a row put an instance aside for five seconds, twice as long
//! each time after that, up to a minute. Pure: the time is given.

use std::time::{Duration, Instant};

const OUT_AFTER: u32 = 3;
const IN_AFTER: u32 = 2;
const ERRORS: u32 = 2;
const SHORTEST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(60);

/// What is known about one instance. It begins well: the server says it is.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    is_out: bool,
    /// Probes in a row that say otherwise.
    against: u32,
    /// Connections in a row that failed.
    errors: u32,
    /// Until when it is aside, and how long that was.
    aside: Option<(Instant, Duration)>,
}

impl Gate {
    pub(crate) fn probed(&mut self, well: bool) {
        if well != self.is_out {
            self.against = 0;
            return;
        }
        self.against += 1;
        let enough = if self.is_out { IN_AFTER } else { OUT_AFTER };
        if self.against >= enough {
            self.is_out = !self.is_out;
            self.against = 0;
        }
    }

    pub(crate) fn connected(&mut self) {
        self.errors = 0;
        self.aside = None;
    }

    pub(crate) fn failed(&mut self, now: Instant) {
        self.errors += 1;
        if self.errors >= ERRORS {
            let wait = match self.aside {
                Some((_, wait)) => (wait * 2).min(LONGEST),
                None => SHORTEST,
            };
            self.errors = 0;
            self.aside = Some((now + wait, wait));
        }
    }

    /// Whether probes say that it is not there.
    pub(crate) const fn is_out(&self) -> bool {
        self.is_out
    }

    pub(crate) fn admits(&self, now: Instant) -> bool {
        !self.is_out && self.aside.is_none_or(|(until, _)| now >= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_after_three_in_after_two_and_only_in_a_row() {
        let (mut gate, now) = (Gate::default(), Instant::now());
        assert!(gate.admits(now));
        for (well, admits) in [
            (false, true),
            (false, true),
            (true, true),
            (false, true),
            (false, true),
            (false, false),
            (true, false),
            (false, false),
            (true, false),
            (true, true),
            (false, true),
        ] {
            gate.probed(well);
            assert_eq!(gate.admits(now), admits, "{gate:?}");
        }
    }

    #[test]
    fn two_failed_connections_put_it_aside_longer_each_time() {
        let (mut gate, mut now) = (Gate::default(), Instant::now());
        gate.failed(now);
        gate.connected();
        gate.failed(now);
        assert!(gate.admits(now));
        gate.failed(now);
        for seconds in [5, 10, 20, 40, 60, 60] {
            let wait = Duration::from_secs(seconds);
            assert!(
                !gate.admits(now + wait - Duration::from_millis(1)),
                "{seconds}"
            );
            now += wait;
            assert!(gate.admits(now), "{seconds}");
            gate.failed(now);
            gate.failed(now);
        }
        gate.connected();
        assert!(gate.admits(now));
        gate.failed(now);
        gate.failed(now);
        assert!(gate.admits(now + SHORTEST), "it begins anew");
    }
}
