//! How much one sandbox may take, and what it has taken so far.
//!
//! Every wait and every count of the proxy ends at a number in [`Limits`]; a
//! request that reaches one is told which.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::reason::Reason;

/// The limits of one sandbox's traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// Requests in all.
    pub requests: u64,
    /// Bytes out of the sandbox, in all.
    pub bytes_up: u64,
    /// Bytes into the sandbox, in all.
    pub bytes_down: u64,
    /// How long the head of a request may take.
    pub head_time: Duration,
    /// How long a name may be looked up.
    pub lookup_time: Duration,
    /// How long connecting may take, over all addresses.
    pub connect_time: Duration,
    /// How long the first bytes of a tunnel may take.
    pub hello_time: Duration,
    /// How long nothing may move.
    pub idle_time: Duration,
    /// How long one exchange may take in all.
    pub total_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            requests: 100_000,
            bytes_up: 1 << 30,
            bytes_down: 10 << 30,
            head_time: Duration::from_secs(10),
            lookup_time: Duration::from_secs(10),
            connect_time: Duration::from_secs(15),
            hello_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(120),
            total_time: Duration::from_secs(3600),
        }
    }
}

/// The two directions, as the sandbox sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Out of it.
    Up,
    /// Into it.
    Down,
}

/// What all exchanges of a sandbox have used.
#[derive(Debug, Default)]
pub(crate) struct Used {
    requests: AtomicU64,
    up: AtomicU64,
    down: AtomicU64,
}

impl Used {
    /// Counts one more request.
    pub(crate) fn request(&self, limits: &Limits) -> Result<(), Reason> {
        match self.requests.fetch_add(1, Ordering::Relaxed) < limits.requests {
            true => Ok(()),
            false => Err(Reason::Requests),
        }
    }

    /// How many bytes went out and came in.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (
            self.up.load(Ordering::Relaxed),
            self.down.load(Ordering::Relaxed),
        )
    }
}

/// What one exchange uses.
#[derive(Debug)]
pub(crate) struct Meter<'a> {
    limits: &'a Limits,
    used: &'a Used,
    start: Instant,
    up: AtomicU64,
    down: AtomicU64,
    /// Milliseconds from the start to the last byte that moved.
    moved: AtomicU64,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(limits: &'a Limits, used: &'a Used) -> Self {
        Self {
            limits,
            used,
            start: Instant::now(),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            moved: AtomicU64::new(0),
        }
    }

    /// What counts the bytes of one direction.
    pub(crate) const fn tally(&self, way: Way) -> Tally<'_> {
        Tally { meter: self, way }
    }

    /// Counts bytes before they are sent on.
    pub(crate) fn count(&self, way: Way, bytes: usize) -> Result<(), Reason> {
        let bytes = bytes as u64;
        let (own, all, limit, reason) = match way {
            Way::Up => (
                &self.up,
                &self.used.up,
                self.limits.bytes_up,
                Reason::BytesUp,
            ),
            Way::Down => (
                &self.down,
                &self.used.down,
                self.limits.bytes_down,
                Reason::BytesDown,
            ),
        };
        if all
            .fetch_add(bytes, Ordering::Relaxed)
            .saturating_add(bytes)
            > limit
        {
            // Given back: what is not sent is not used.
            all.fetch_sub(bytes, Ordering::Relaxed);
            return Err(reason);
        }
        own.fetch_add(bytes, Ordering::Relaxed);
        self.moved.store(self.elapsed_millis(), Ordering::Relaxed);
        Ok(())
    }

    /// How many bytes went out and came in.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (
            self.up.load(Ordering::Relaxed),
            self.down.load(Ordering::Relaxed),
        )
    }

    /// Ends when the exchange has been idle or has gone on for too long.
    pub(crate) async fn out_of_time(&self) -> Reason {
        let end = self.start + self.limits.total_time;
        loop {
            let moved = self.moved.load(Ordering::Relaxed);
            let idle = self.start + Duration::from_millis(moved) + self.limits.idle_time;
            sleep_until(idle.min(end)).await;
            if Instant::now() >= end {
                return Reason::TotalTime;
            }
            if self.moved.load(Ordering::Relaxed) == moved {
                return Reason::Idle;
            }
        }
    }

    fn elapsed_millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The count of one direction of an exchange.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tally<'a> {
    meter: &'a Meter<'a>,
    way: Way,
}

impl Tally<'_> {
    /// Counts bytes before they are sent on.
    pub(crate) fn count(self, bytes: usize) -> Result<(), Reason> {
        self.meter.count(self.way, bytes)
    }
}
