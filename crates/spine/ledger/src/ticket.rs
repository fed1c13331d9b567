//! The promise of a position for an event that still sits in the buffer.
//!
//! A ticket is shared between the caller and the writer; it resolves exactly
//! once. Waiting on one never blocks the writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

const LOST: u64 = u64::MAX;

#[derive(Debug, Default)]
struct Cell {
    /// 0 while pending, [`LOST`] if it never comes, else the position.
    seq: AtomicU64,
    /// The position in a transaction that is not committed yet.
    sealed: AtomicU64,
}

/// The promise of a `seq` for a recorded event.
#[derive(Debug, Clone)]
pub struct Ticket {
    cell: Arc<Cell>,
    commits: watch::Receiver<u64>,
}

/// The ledger was closed before the event could be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the event was not written before the ledger closed")]
pub struct TicketLost;

impl Ticket {
    /// A ticket that resolves at some later tick of `commits`.
    pub(crate) fn new(commits: watch::Receiver<u64>) -> Self {
        Self {
            cell: Arc::default(),
            commits,
        }
    }

    /// The position, if the event has one by now.
    #[must_use]
    pub fn seq(&self) -> Option<u64> {
        match self.cell.seq.load(Ordering::Acquire) {
            0 | LOST => None,
            seq => Some(seq),
        }
    }

    /// Waits for the position.
    ///
    /// # Errors
    /// The ledger closed without having written the event.
    pub async fn wait(&self) -> Result<u64, TicketLost> {
        let mut commits = self.commits.clone();
        loop {
            // Marks the current tick as seen first, so that one that comes
            // between the look and the wait is not missed.
            commits.borrow_and_update();
            match self.cell.seq.load(Ordering::Acquire) {
                0 => commits.changed().await.map_err(|_| TicketLost)?,
                LOST => return Err(TicketLost),
                seq => return Ok(seq),
            }
        }
    }

    pub(crate) fn resolve(&self, seq: u64) {
        self.cell.seq.store(seq, Ordering::Release);
    }

    pub(crate) fn lose(&self) {
        self.cell.seq.store(LOST, Ordering::Release);
    }

    /// Notes the position inside the transaction under way.
    pub(crate) fn seal(&self, seq: u64) {
        self.cell.sealed.store(seq, Ordering::Release);
    }

    /// The position as the writer sees it, which may not be committed yet.
    pub(crate) fn sealed(&self) -> Option<u64> {
        let sealed = self.cell.sealed.load(Ordering::Acquire);
        match self.cell.seq.load(Ordering::Acquire) {
            // What was sealed before it was lost is not there.
            LOST => None,
            0 => (sealed != 0).then_some(sealed),
            seq => Some(seq),
        }
    }

    /// Whether the ledger that counts these commits gave out this ticket.
    pub(crate) fn belongs_to(&self, commits: &watch::Receiver<u64>) -> bool {
        self.commits.same_channel(commits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_ticket_resolves_once_its_commit_ticks() {
        let (commits, receiver) = watch::channel(0);
        let ticket = Ticket::new(receiver);
        assert_eq!(ticket.seq(), None);
        let waiting = tokio::spawn({
            let ticket = ticket.clone();
            async move { ticket.wait().await }
        });
        ticket.resolve(7);
        commits.send_replace(1);
        assert_eq!(waiting.await.unwrap(), Ok(7));
        assert_eq!(ticket.seq(), Some(7));
    }

    #[tokio::test]
    async fn a_ticket_of_a_closed_ledger_is_lost() {
        let (commits, receiver) = watch::channel(0);
        let ticket = Ticket::new(receiver);
        ticket.seal(3);
        ticket.lose();
        assert_eq!(ticket.wait().await, Err(TicketLost));
        assert_eq!(ticket.sealed(), None);
        drop(commits);
    }
}
