//! Seats for connections: how many a listener has, and how many of one source.
//!
//! No source has them all, so whoever opens connections and asks nothing keeps
//! others waiting only with the help of many. Never ends a connection that has
//! a seat. Next: `http::listen` and `node::service`, which end those that idle.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::source;

/// The seats of one listener; to be cloned freely.
#[derive(Debug, Clone)]
pub(crate) struct Seats {
    all: Arc<Semaphore>,
    most: usize,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A seat that nobody has yet.
#[derive(Debug)]
pub(crate) struct Free(OwnedSemaphorePermit);

/// The seat of a connection, until this is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    _place: OwnedSemaphorePermit,
    counted: Option<Counted>,
}

/// One of the seats that a source has.
#[derive(Debug)]
struct Counted {
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
    source: IpAddr,
}

impl Seats {
    /// So many.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(most)),
            most,
            taken: Arc::default(),
        }
    }

    /// Waits for a seat.
    ///
    /// # Errors
    /// Never; nobody closes the listener's seats.
    pub(crate) async fn free(&self) -> io::Result<Free> {
        let place = Arc::clone(&self.all).acquire_owned().await;
        place.map(Free).map_err(io::Error::other)
    }

    /// Gives a seat to a connection; not to one whose source has as many as
    /// one source may. Those without an address are of this machine, and not
    /// counted.
    pub(crate) fn give(&self, free: Free, from: Option<IpAddr>) -> Option<Seat> {
        let counted = match from {
            Some(address) => Some(self.count(source::counted(address))?),
            None => None,
        };
        Some(Seat {
            _place: free.0,
            counted,
        })
    }

    fn count(&self, source: IpAddr) -> Option<Counted> {
        let mut taken = lock(&self.taken);
        let seats = taken.entry(source).or_default();
        if *seats >= self.of_one(source) {
            return None;
        }
        *seats += 1;
        drop(taken);
        Some(Counted {
            taken: Arc::clone(&self.taken),
            source,
        })
    }

    /// A quarter; this machine has three, because whoever stands in front of
    /// the server on it brings everybody's connections.
    fn of_one(&self, source: IpAddr) -> usize {
        let quarter = (self.most / 4).max(1);
        match source.is_loopback() {
            true => quarter * 3,
            false => quarter,
        }
    }
}

impl Seat {
    /// Counts it among nobody's any more: its owner proved to be more than an
    /// address.
    pub(crate) fn vouch(&mut self) {
        self.counted = None;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        if let Some(seats) = taken.get_mut(&self.source) {
            *seats = seats.saturating_sub(1);
            if *seats == 0 {
                taken.remove(&self.source);
            }
        }
    }
}

fn lock(taken: &Mutex<HashMap<IpAddr, usize>>) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sit(seats: &Seats, from: &str) -> Option<Seat> {
        let free = seats.free().await.unwrap();
        seats.give(free, Some(from.parse().unwrap()))
    }

    #[tokio::test]
    async fn a_source_has_a_quarter_and_the_machine_itself_three() {
        let seats = Seats::new(8);
        let mut crowd = Vec::new();
        for from in ["2001:db8::1", "2001:db8::2"] {
            crowd.push(sit(&seats, from).await.unwrap());
        }
        // The same network by another address.
        assert!(sit(&seats, "2001:db8::3").await.is_none());
        let other = sit(&seats, "2001:db8:0:1::1").await;
        assert!(other.is_some(), "another network is another source");
        drop(other);
        for _ in 0..6 {
            crowd.push(sit(&seats, "127.0.0.1").await.unwrap());
        }
        // Seats that were refused to one are there for others: all eight are
        // taken now, and the first that is left can be had.
        assert!(seats.all.try_acquire().is_err());
        crowd.truncate(7);
        assert!(sit(&seats, "127.0.0.1").await.is_some());
        crowd.clear();
        assert!(lock(&seats.taken).is_empty(), "nobody is remembered");
    }

    #[tokio::test]
    async fn who_is_vouched_for_or_has_no_address_counts_for_nobody() {
        let seats = Seats::new(8);
        let mut members = Vec::new();
        for _ in 0..4 {
            let mut member = sit(&seats, "192.0.2.1").await.unwrap();
            member.vouch();
            members.push(member);
        }
        for _ in 0..2 {
            let free = seats.free().await.unwrap();
            members.push(seats.give(free, None).unwrap());
        }
        assert!(sit(&seats, "192.0.2.1").await.is_some());
        assert_eq!(seats.all.available_permits(), 2);
    }
}
