//! Copying a ledger into another engine: the same chain, event by event.
//!
//! Nothing is taken over but what was said: the target numbers and hashes every
//! event anew, from the same genesis record, so what comes out equal was copied
//! whole. A copy that was interrupted goes on where it stopped.

use fluffy_base::Digest;

use crate::chain::{Command, Verdict};
use crate::class::Durability;
use crate::draft::{Prepared, SeqRef};
use crate::engine::Engine;
use crate::error::StoreError;
use crate::event::Event;
use crate::ledger::{Ledger, LedgerHead};
use crate::postgres::{PostgresAddress, Store};

/// How many events go in one transaction.
const GROUP: usize = 500;

/// Why a ledger was not copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// One of the two storages failed.
    #[error("the ledger can't be copied")]
    Store(#[from] StoreError),
    /// A part of it is only in the archive.
    #[error("the events before {first} are in the archive, not in the database")]
    Archived {
        /// The first event that is not.
        first: u64,
    },
    /// The target holds another ledger.
    #[error("the database holds another ledger already")]
    Occupied,
    /// The copy is not what was copied.
    #[error("the copy differs at event {seq}")]
    Differs {
        /// The first event from which on nothing is sure.
        seq: u64,
    },
    /// Somebody appended to the ledger meanwhile.
    #[error("the ledger grew while it was copied")]
    Grew,
}

impl Ledger {
    /// Copies this ledger into a PostgreSQL database that holds none, or an
    /// earlier part of this one. Nobody may append meanwhile.
    ///
    /// # Errors
    /// See [`CopyError`]; the ledger itself is never changed.
    pub fn copy_to_postgres(&self, address: &PostgresAddress) -> Result<LedgerHead, CopyError> {
        let first = self.first_hot()?;
        if first > 1 {
            return Err(CopyError::Archived { first });
        }
        let genesis = self.genesis();
        let target = Engine::Postgres(Store::open(address, &genesis)?);
        if target.genesis() != genesis {
            return Err(CopyError::Occupied);
        }
        let end = self.head()?;
        let mut done = target.head()?.seq;
        if done > end.seq || target.head()?.hash != self.hash_at(done)? {
            return Err(CopyError::Occupied);
        }
        let mut writer = target.writer()?;
        while done < end.seq {
            let events = self.read(done + 1, GROUP)?;
            let Some(last) = events.last() else {
                return Err(CopyError::Differs { seq: done + 1 });
            };
            let (seq, hash) = (last.seq, last.hash);
            let mut commands: Vec<Command> = events.into_iter().map(again).collect();
            let head = writer.commit(&mut commands, Durability::Operational)?;
            if (head.seq, head.hash) != (seq, hash) {
                return Err(CopyError::Differs { seq: done + 1 });
            }
            done = seq;
        }
        writer.sync()?;
        let copied = target.head()?;
        if self.head()? != end {
            return Err(CopyError::Grew);
        }
        let copied = LedgerHead {
            seq: copied.seq,
            hash: copied.hash,
            epoch: copied.epoch,
            root: copied.frontier.root(),
        };
        match copied == end {
            true => Ok(copied),
            false => Err(CopyError::Differs { seq: end.seq }),
        }
    }

    /// The hash after so many events.
    fn hash_at(&self, seq: u64) -> Result<Digest, StoreError> {
        if seq == 0 {
            return Ok(self.genesis().hash());
        }
        let found = self.read(seq, 1)?;
        let hash = found.first().map(|event| event.hash);
        hash.ok_or(StoreError::SequenceGap { seq })
    }
}

/// An event as it was before it was numbered.
fn again(event: Event) -> Command {
    let durability = Durability::Operational;
    let prepared = Prepared {
        durability,
        causation: event.causation_seq.map(SeqRef::Known),
        decision: event.decision_seq.map(SeqRef::Known),
        event,
    };
    Command {
        prepared: vec![prepared],
        expected: Vec::new(),
        after: None,
        durability,
        ticket: None,
        verdict: Verdict::default(),
    }
}
