//! Sessions that wait for the next reader.
//!
//! A session that met an error is closed with it, and the reader gets another
//! one while the server is worth waiting for. However many readers there are,
//! the server sees a bounded number of sessions; who gets none in time is told
//! so. Never used for appending.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::failure::Failure;
use super::session::{Link, PATIENCE, Patience, Session, Use};
use crate::error::StoreError;

/// How many sessions there are at most, and how many are kept while idle.
const MAX_SESSIONS: usize = 16;
const MAX_IDLE: usize = 8;

/// Idle sessions of one use.
#[derive(Debug)]
pub(super) struct Pool {
    link: Link,
    usage: Use,
    idle: Mutex<Vec<Session>>,
    seats: Seats,
}

/// How many may go on at once.
#[derive(Debug, Default)]
struct Seats {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// A seat, until this is dropped.
struct Seat<'a>(&'a Seats);

impl Seats {
    /// A seat; none if all stay taken for too long.
    fn take(&self, most: usize, patience: Duration) -> Option<Seat<'_>> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |taken: &mut usize| *taken >= most;
        let waited = self.freed.wait_timeout_while(taken, patience, full);
        let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *taken >= most {
            return None;
        }
        *taken += 1;
        Some(Seat(self))
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let taken = self.0.taken.lock();
        *taken.unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.freed.notify_one();
    }
}

impl Pool {
    pub(super) fn new(link: &Link, usage: Use) -> Self {
        Self {
            link: link.clone(),
            usage,
            idle: Mutex::default(),
            seats: Seats::default(),
        }
    }

    /// Runs `read` on an idle session or a new one, and again on another one
    /// if that breaks.
    pub(super) fn run<T>(
        &self,
        mut read: impl FnMut(&mut Session) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let seat = self.seats.take(MAX_SESSIONS, PATIENCE);
        let _seat = seat.ok_or(Failure::Crowded)?;
        let mut patience = Patience::new(PATIENCE);
        loop {
            let mut session = match self.take() {
                Some(session) => session,
                None => self.link.connect_patiently(self.usage, &mut patience)?,
            };
            match session.within(&mut read) {
                Ok(value) => {
                    self.keep(session);
                    return Ok(value);
                }
                Err(failure) if failure.ends_session() && patience.pause() => {}
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    fn take(&self) -> Option<Session> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|session| !session.is_closed());
        idle.pop()
    }

    fn keep(&self, session: Session) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(session);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn never_more_than_so_many_go_on_at_once() {
        let (seats, now, most) = (Seats::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _seat = seats.take(3, Duration::from_secs(60)).unwrap();
                        let here = now.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(here, Ordering::SeqCst);
                        std::thread::yield_now();
                        now.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!((1..=3).contains(&most.into_inner()));
        let held: Vec<_> = (0..3).map(|_| seats.take(3, Duration::ZERO)).collect();
        assert!(held.iter().all(Option::is_some));
        // Whoever waits in vain is told so, and a seat that is given up is taken.
        assert!(seats.take(3, Duration::from_millis(10)).is_none());
        drop(held);
        assert!(seats.take(3, Duration::ZERO).is_some());
    }
}
