//! Whether and when a lost kernel is started again; pure.
//!
//! Time is how long this process has been running. Knows nothing about
//! processes.

use std::time::Duration;

/// How often a kernel may be restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// So many restarts…
    pub restarts: usize,
    /// …in any stretch of this length.
    pub within: Duration,
    /// The pause before the first; each further one in the stretch doubles it.
    pub pause: Duration,
}

impl Default for Allowance {
    fn default() -> Self {
        Self {
            restarts: 3,
            within: Duration::from_secs(5 * 60),
            pause: Duration::from_millis(100),
        }
    }
}

/// The restarts that still count.
#[derive(Debug)]
pub struct Restarts {
    allowance: Allowance,
    recent: Vec<Duration>,
}

impl Restarts {
    /// None so far.
    #[must_use]
    pub fn new(allowance: Allowance) -> Self {
        let recent = Vec::new();
        Self { allowance, recent }
    }

    /// The pause before the next restart, which counts from now on; nothing
    /// when there may be none.
    pub fn next(&mut self, now: Duration) -> Option<Duration> {
        let limits = self.allowance;
        self.recent
            .retain(|at| now.saturating_sub(*at) < limits.within);
        if self.recent.len() >= limits.restarts {
            return None;
        }
        let doubled = u32::try_from(self.recent.len()).unwrap_or(u32::MAX);
        self.recent.push(now);
        Some(limits.pause.saturating_mul(2_u32.saturating_pow(doubled)))
    }
}
