//! When a kernel is pinged, and when it has been silent for too long; pure.
//!
//! Time is how long the kernel has been running. Knows nothing about sockets.

use std::time::Duration;

/// How a kernel is pinged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rhythm {
    /// How long after an answer the next ping is sent.
    pub every: Duration,
    /// How long an answer may take.
    pub within: Duration,
    /// How long the first one may take: a kernel checks its ledger first.
    pub first_within: Duration,
}

impl Default for Rhythm {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(1),
            within: Duration::from_secs(5),
            first_within: Duration::from_secs(30),
        }
    }
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    /// Send this byte.
    Send(u8),
    /// Nothing for this long.
    Wait(Duration),
    /// Give the kernel up.
    Silent,
}

/// The pings of one kernel.
#[derive(Debug)]
pub struct Heartbeat {
    rhythm: Rhythm,
    /// How long the next answer may take.
    within: Duration,
    number: u8,
    /// Whether an answer is awaited until `next`, or a ping is due then.
    is_asked: bool,
    next: Duration,
}

impl Heartbeat {
    /// Of a kernel that was just started; the first ping is due.
    #[must_use]
    pub fn new(rhythm: Rhythm) -> Self {
        Self {
            rhythm,
            within: rhythm.first_within,
            number: 0,
            is_asked: false,
            next: Duration::ZERO,
        }
    }

    /// What to do now; a byte that is to be sent counts as sent.
    pub fn turn(&mut self, now: Duration) -> Beat {
        if now < self.next {
            return Beat::Wait(self.next.saturating_sub(now));
        }
        if self.is_asked {
            return Beat::Silent;
        }
        self.number = self.number.wrapping_add(1);
        self.is_asked = true;
        self.next = now.saturating_add(self.within);
        Beat::Send(self.number)
    }

    /// Takes a byte from the kernel; only the last one that was sent counts.
    pub fn heard(&mut self, byte: u8, now: Duration) {
        if self.is_asked && byte == self.number {
            self.is_asked = false;
            self.within = self.rhythm.within;
            self.next = now.saturating_add(self.rhythm.every);
        }
    }
}
