//! What went wrong with peers, counted instead of logged.
//!
//! A peer can cause these as often as it likes, so they must never cost more
//! than an addition. Next: `connection.rs`, which reports them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Something that ended a connection, or a call, against the peer's wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incident {
    /// The operating system could not say who the peer is.
    NoIdentity,
    /// The listener had as many connections as it may have.
    TooManyConnections,
    /// The first message was no acceptable handshake, or came too late.
    HandshakeRefused,
    /// Bytes that are no frame, or a frame that is no message.
    Malformed,
    /// A frame was begun and not finished in time.
    SlowWriter,
    /// A frame of ours was not read in time.
    SlowReader,
    /// The process that connected ended, but someone still used its connection.
    PeerGone,
    /// A method panicked; the call failed, the connection went on.
    Panic,
}

const KINDS: usize = Incident::Panic as usize + 1;

/// How often each incident happened.
#[derive(Debug, Default)]
pub struct Counters([AtomicU64; KINDS]);

impl Counters {
    /// How often this happened so far.
    #[must_use]
    pub fn of(&self, incident: Incident) -> u64 {
        self.0
            .get(incident as usize)
            .map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    pub(super) fn add(&self, incident: Incident) {
        if let Some(counter) = self.0.get(incident as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_incident_has_its_own_counter() {
        let counters = Counters::default();
        counters.add(Incident::NoIdentity);
        counters.add(Incident::Panic);
        counters.add(Incident::Panic);
        assert_eq!(counters.of(Incident::NoIdentity), 1);
        assert_eq!(counters.of(Incident::Malformed), 0);
        assert_eq!(counters.of(Incident::Panic), 2);
    }
}
