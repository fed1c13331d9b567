//! Saved folds, so that a start need not read the whole ledger.
//!
//! A snapshot names the schema it was made with, the event it stands after and
//! the hash of its own bytes; one that does not fit is as good as none, and the
//! ledger is folded from an older one or from its start. Never a source of
//! truth.

use std::io::Read;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::Digest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::aside::{Aside, AsideError, Kind, MAX_VALUE};
use crate::fold::{Fold, Machine, Position};
use crate::sequencer::{Recall, Sequencer};

/// How many are kept.
const KEPT: usize = 3;
/// How many events pass between two.
const EVERY: u64 = 100_000;
/// How long a snapshot that failed waits for the next try.
const PAUSE: Duration = Duration::from_secs(30);

const SNAPSHOT: Kind = Kind::new("snapshot");

/// A machine that can be saved.
pub trait Saved: Machine + Serialize + DeserializeOwned {
    /// Another digest for every change of the shape or the meaning of what is
    /// saved.
    fn schema() -> Digest;
}

/// The saved folds of one machine.
#[derive(Debug)]
pub struct Snapshots<M> {
    aside: Aside,
    every: u64,
    machine: PhantomData<fn() -> M>,
}

/// Why a snapshot was not taken.
#[derive(Debug, thiserror::Error)]
pub enum TakeSnapshotError {
    /// The machine can't be written as bytes.
    #[error("the state can't be saved")]
    Encode(#[source] postcard::Error),
    /// The bytes can't be packed.
    #[error("the saved state can't be packed")]
    Pack(#[source] std::io::Error),
    /// The store beside the ledger did not take it.
    #[error("the saved state can't be stored")]
    Store(#[from] AsideError),
    /// The runtime shuts down.
    #[error("the runtime ended while the state was saved")]
    Interrupted,
}

/// What stands before the bytes of the machine.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    schema: Digest,
    epoch: u64,
    seq: u64,
    hash: Digest,
}

impl<M> Clone for Snapshots<M> {
    fn clone(&self) -> Self {
        Self {
            aside: self.aside.clone(),
            every: self.every,
            machine: PhantomData,
        }
    }
}

impl<M: Saved> Snapshots<M> {
    /// Those in this store.
    #[must_use]
    pub fn new(aside: Aside) -> Self {
        Self {
            aside,
            every: EVERY,
            machine: PhantomData,
        }
    }

    /// The same, with so many events between two.
    #[must_use]
    pub const fn with_stride(mut self, events: u64) -> Self {
        self.every = events;
        self
    }

    /// For a sequencer, whose thread waits on the given runtime.
    #[must_use]
    pub fn recall(&self, runtime: Handle) -> Recall<M> {
        let snapshots = self.clone();
        Arc::new(move |nth| runtime.block_on(snapshots.load(nth)))
    }

    /// The newest usable snapshot for 0, the one before for 1, ….
    pub async fn load(&self, nth: usize) -> Option<Fold<M>> {
        let limit = u32::try_from(KEPT * 2).unwrap_or(u32::MAX);
        let keys = self.aside.last_keys(SNAPSHOT, limit).await.ok()?;
        let mut usable = 0;
        for key in keys {
            let entry = self.aside.get(SNAPSHOT, &key).await.ok()??;
            let fold = spawn_blocking(move || decode::<M>(&entry.value))
                .await
                .ok()?;
            match fold {
                Some(fold) if usable == nth => return Some(fold),
                Some(_) => usable += 1,
                None => tracing::warn!(key, "a snapshot can't be used"),
            }
        }
        None
    }

    /// Saves a fold and removes what is older than the newest three, or of a
    /// future that a restored ledger has lost.
    ///
    /// # Errors
    /// The fold is not saved; others still are.
    pub async fn take(&self, fold: Fold<M>) -> Result<(), TakeSnapshotError> {
        let key = key(fold.position);
        let encoded = spawn_blocking(move || encode(&fold)).await;
        let encoded = encoded.map_err(|_| TakeSnapshotError::Interrupted)??;
        self.aside.put(SNAPSHOT, &key, encoded, None).await?;
        let keys = self.aside.last_keys(SNAPSHOT, 1_000).await?;
        let (lost, kept): (Vec<_>, Vec<_>) = keys.into_iter().partition(|other| *other > key);
        for old in lost.iter().chain(kept.iter().skip(KEPT)) {
            self.aside.delete(SNAPSHOT, old).await?;
        }
        Ok(())
    }

    /// Where the newest usable snapshot stands.
    pub async fn newest(&self) -> Option<Position> {
        let limit = u32::try_from(KEPT * 2).unwrap_or(u32::MAX);
        for key in self.aside.last_keys(SNAPSHOT, limit).await.ok()? {
            let entry = self.aside.get(SNAPSHOT, &key).await.ok()?;
            if let Some(position) = entry.and_then(|entry| stands_at::<M>(&entry.value)) {
                return Some(position);
            }
        }
        None
    }

    /// Removes all snapshots: what they hold is not to be trusted.
    ///
    /// # Errors
    /// The store fails; some may be left.
    pub async fn forget(&self) -> Result<(), AsideError> {
        for key in self.aside.last_keys(SNAPSHOT, 1_000).await? {
            self.aside.delete(SNAPSHOT, &key).await?;
        }
        Ok(())
    }

    /// Takes a snapshot now and then, until told to stop and then once more.
    pub async fn keep(&self, sequencer: &Sequencer<M>, mut stop: watch::Receiver<bool>) {
        // What was folded at the start counts too: whoever is killed again and
        // again before the next is due would otherwise never take one.
        let applied = sequencer.applied();
        let start = Position { seq: 0, ..applied };
        let newest = self.newest().await.unwrap_or(start);
        let mut saved = newest.min(applied);
        let mut positions = sequencer.positions();
        loop {
            let due = Position {
                epoch: saved.epoch,
                seq: saved.seq.saturating_add(self.every),
            };
            let stopped = tokio::select! {
                _ = stop.wait_for(|stop| *stop) => true,
                reached = positions.wait_for(|position| *position >= due) => reached.is_err(),
            };
            let fold = sequencer.save();
            let position = fold.position;
            let taken = match position == saved {
                true => Ok(()),
                false => self.take(fold).await,
            };
            match taken {
                Ok(()) => saved = position,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        seq = position.seq,
                        "no snapshot was taken"
                    );
                    if !stopped {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
            if stopped {
                return;
            }
        }
    }
}

/// Sorts by position.
fn key(position: Position) -> String {
    format!("{:020}-{:020}", position.epoch, position.seq)
}

fn encode<M: Saved>(fold: &Fold<M>) -> Result<Vec<u8>, TakeSnapshotError> {
    let header = Header {
        schema: M::schema(),
        epoch: fold.position.epoch,
        seq: fold.position.seq,
        hash: fold.hash,
    };
    let content = postcard::to_allocvec(&(&header, &fold.machine));
    let content = content.map_err(TakeSnapshotError::Encode)?;
    let digest = Digest::of(&content);
    let whole = digest.as_bytes().chain(content.as_slice());
    zstd::encode_all(whole, 1).map_err(TakeSnapshotError::Pack)
}

/// Where a snapshot of this schema stands, as its start says.
fn stands_at<M: Saved>(packed: &[u8]) -> Option<Position> {
    // The digest and the header, and then some.
    let mut bytes = Vec::new();
    let mut unpacked = zstd::Decoder::new(packed).ok()?.take(256);
    unpacked.read_to_end(&mut bytes).ok()?;
    let (_, content) = bytes.split_at_checked(32)?;
    let (header, _) = postcard::take_from_bytes::<Header>(content).ok()?;
    (header.schema == M::schema()).then_some(Position {
        epoch: header.epoch,
        seq: header.seq,
    })
}

/// The fold, if the bytes are whole and of this schema.
fn decode<M: Saved>(packed: &[u8]) -> Option<Fold<M>> {
    // What grew beyond this when packed was never stored by us.
    const MAX_BYTES: u64 = 16 * MAX_VALUE as u64;
    let mut bytes = Vec::new();
    let mut unpacked = zstd::Decoder::new(packed).ok()?.take(MAX_BYTES);
    unpacked.read_to_end(&mut bytes).ok()?;
    let (digest, content) = bytes.split_at_checked(32)?;
    (digest == Digest::of(content).as_bytes()).then_some(())?;
    // Of another schema, only the header can be read.
    let (header, machine) = postcard::take_from_bytes::<Header>(content).ok()?;
    (header.schema == M::schema()).then_some(())?;
    Some(Fold {
        machine: postcard::from_bytes(machine).ok()?,
        position: Position {
            epoch: header.epoch,
            seq: header.seq,
        },
        hash: header.hash,
    })
}
