//! A machine folded from the ledger, and how it gets to the ledger's end.
//!
//! A fold knows the hash of the event it stands after, so it notices when the
//! ledger goes on from another one: then it was restored, and the fold is of
//! no use any more. Never skips an event.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use fluffy_base::Digest;
use fluffy_control::event::FIRST_READERS;
use fluffy_ledger::archive::segments;
use fluffy_ledger::chain::RESTORED;
use fluffy_ledger::export::ExportReader;
use fluffy_ledger::{Actor, Aggregate, Domain, Draft, Event, Ledger, StoreError};

/// The most events that are read at once.
const PAGE: usize = 1_000;

/// A state that is folded from events and decides what to append.
///
/// All of it is pure: the same events give the same machine, and the same
/// machine decides the same job alike.
pub trait Machine: Clone + Default + Send + Sync + 'static {
    /// What is asked of it.
    type Job: Send + 'static;
    /// What it answers, once what it decided is in the ledger.
    type Reply: Send + 'static;
    /// Why an event can't be folded in.
    type Unknown: Error + Send + Sync + 'static;

    /// What follows from a job. It may be asked again, after other events.
    fn decide(&self, job: &mut Self::Job) -> Decided<Self::Reply>;

    /// Folds in the next event.
    ///
    /// # Errors
    /// It is not known; the machine is as before.
    fn apply(&mut self, event: &Event) -> Result<(), Self::Unknown>;

    /// How many events an aggregate of the platform has.
    fn version(&self, aggregate: &Aggregate) -> u64;

    /// Notes the epoch of the ledger, which counts its restorations.
    fn enter(&mut self, epoch: u64);

    /// The version that every reader has at least, as the ledger says.
    fn readers(&self) -> u64 {
        FIRST_READERS
    }
}

/// What follows from a job.
#[derive(Debug)]
pub struct Decided<R> {
    /// What is to be appended, all of it or nothing.
    pub drafts: Vec<Draft>,
    /// What is answered after that.
    pub reply: R,
}

/// A place in a ledger; after a restoration every place is a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// How often the ledger was restored, from 1.
    pub epoch: u64,
    /// The last event.
    pub seq: u64,
}

/// A machine at a position of a ledger.
#[derive(Debug, Clone)]
pub struct Fold<M> {
    /// The machine.
    pub machine: M,
    /// Where it stands.
    pub position: Position,
    /// The hash of the event there.
    pub hash: Digest,
}

/// What comes after a fold.
#[derive(Debug)]
pub(crate) enum Next {
    /// These events, in order.
    Events(Vec<Event>),
    /// Nothing: it is at the end.
    End,
    /// The ledger does not hold the event that it stands after.
    Elsewhere,
}

/// Why a fold can't get to the end of the ledger.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FoldError {
    /// The ledger can't be read.
    #[error("the ledger can't be read")]
    Store(#[from] StoreError),
    /// An event is not known to this version of the program.
    #[error("event {seq}, `{event_type}`, is not known to this version")]
    Unknown {
        /// Which.
        seq: u64,
        /// Its type.
        event_type: String,
        /// Why not.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The runtime shuts down.
    #[error("the runtime ended while the ledger was folded")]
    Interrupted,
    /// The ledger was restored, and no new epoch could be opened yet.
    #[error("the ledger was restored, and no new epoch could be opened yet")]
    Unopened,
    /// The events at the start are archived, and neither the archive nor a
    /// snapshot is at hand.
    #[error("events before {first} are archived, and neither archive nor snapshot reaches them")]
    Archived {
        /// The first that can be read.
        first: u64,
    },
    /// The archive can't be read, or does not hold the events of this ledger.
    #[error("the archive can't be read at event {seq}")]
    Archive {
        /// The event that was due.
        seq: u64,
        /// Why not; none if another one came.
        #[source]
        source: Option<Arc<dyn Error + Send + Sync>>,
    },
}

impl<M: Machine> Fold<M> {
    /// Before the first event of a ledger.
    #[must_use]
    pub fn empty(ledger: &Ledger) -> Self {
        let mut machine = M::default();
        machine.enter(1);
        Self {
            machine,
            position: Position { epoch: 1, seq: 0 },
            hash: ledger.genesis().hash(),
        }
    }

    /// Folds in the event after this.
    ///
    /// # Errors
    /// It is not known; everything is as before.
    pub fn advance(&mut self, event: &Event) -> Result<(), FoldError> {
        self.machine
            .apply(event)
            .map_err(|source| FoldError::Unknown {
                seq: event.seq,
                event_type: event.event_type.clone(),
                source: Arc::new(source),
            })?;
        self.position.seq = event.seq;
        self.hash = event.hash;
        if event.event_type == RESTORED {
            self.position.epoch += 1;
            self.machine.enter(self.position.epoch);
        }
        Ok(())
    }

    /// Folds in what an archive holds after this, up to the event `last`.
    ///
    /// Believes what the segments hold as far as they are one chain with this;
    /// whether they are what was written is for `audit verify` to say.
    ///
    /// # Errors
    /// The archive can't be read, or an event is not known.
    pub fn read_archive(&mut self, archive: &Path, last: u64) -> Result<(), FoldError> {
        for segment in segments(archive).map_err(|error| self.unreadable(error))? {
            if segment.last_seq <= self.position.seq {
                continue;
            }
            let reader = ExportReader::open(&segment.path);
            let mut reader = reader.map_err(|error| self.unreadable(error))?;
            while self.position.seq < last {
                let next = reader.next_event();
                let Some(event) = next.map_err(|error| self.unreadable(error))? else {
                    break;
                };
                if event.seq <= self.position.seq {
                    continue;
                }
                if (event.seq, event.prev_hash) != (self.position.seq + 1, self.hash) {
                    let seq = self.position.seq + 1;
                    return Err(FoldError::Archive { seq, source: None });
                }
                self.advance(&event)?;
            }
        }
        Ok(())
    }

    fn unreadable(&self, error: impl Error + Send + Sync + 'static) -> FoldError {
        FoldError::Archive {
            seq: self.position.seq + 1,
            source: Some(Arc::new(error)),
        }
    }

    /// Folds in everything up to the end of the ledger; false if the ledger is
    /// not the one that this was folded from.
    ///
    /// # Errors
    /// The ledger can't be read, or an event is not known.
    pub fn finish(&mut self, ledger: &Ledger) -> Result<bool, FoldError> {
        loop {
            match next(ledger, self.position.seq, self.hash)? {
                Next::Events(events) => events.iter().try_for_each(|event| self.advance(event))?,
                Next::End => return Ok(true),
                Next::Elsewhere => return Ok(false),
            }
        }
    }
}

/// Folds a ledger to its end, from the first of the saved folds that fits, or
/// from its start. `recall` gives the newest for 0, the one before for 1, ….
pub(crate) fn refold<M: Machine>(
    ledger: &Ledger,
    recall: &dyn Fn(usize) -> Option<Fold<M>>,
    archive: Option<&Path>,
) -> Result<Fold<M>, FoldError> {
    let mut nth = 0;
    while let Some(mut saved) = recall(nth) {
        if saved.finish(ledger)? {
            return Ok(saved);
        }
        nth += 1;
    }
    loop {
        let mut fold = begin(ledger, archive)?;
        // Only false if the ledger is restored while it is read.
        if fold.finish(ledger)? {
            return Ok(fold);
        }
    }
}

/// Folds a ledger from its first event to the event `last`; from its archive,
/// if it is given, up to the event that is named with it.
pub(crate) fn refold_to<M: Machine>(
    ledger: &Ledger,
    last: u64,
    archive: Option<(&Path, u64)>,
) -> Result<Fold<M>, FoldError> {
    let mut fold = Fold::empty(ledger);
    if let Some((archive, archived)) = archive {
        fold.read_archive(archive, archived.min(last))?;
    }
    while fold.position.seq < last {
        let left = usize::try_from(last - fold.position.seq).unwrap_or(PAGE);
        let events = ledger.read(fold.position.seq + 1, left.min(PAGE))?;
        if events.is_empty() {
            let seq = fold.position.seq + 1;
            return Err(StoreError::SequenceGap { seq }.into());
        }
        events.iter().try_for_each(|event| fold.advance(event))?;
    }
    Ok(fold)
}

/// Before the first event at hand, with what the archive has before it.
fn begin<M: Machine>(ledger: &Ledger, archive: Option<&Path>) -> Result<Fold<M>, FoldError> {
    let mut fold = Fold::empty(ledger);
    let first = ledger.first_hot()?;
    if first > 1 {
        if let Some(archive) = archive {
            fold.read_archive(archive, first - 1)?;
        }
        if fold.position.seq < first - 1 {
            return Err(FoldError::Archived { first });
        }
    }
    Ok(fold)
}

/// That the ledger was put back to an earlier point: what comes after has a new
/// epoch, which everybody outside goes by.
pub(crate) fn restored(ledger: &Ledger) -> Draft {
    let own = Aggregate::new("ledger", ledger.id().to_string());
    let draft = Draft::new(Domain::Agent, own, RESTORED, Actor::system("ledger"));
    draft.payload(serde_json::json!({ "kind": "earlier_point" }))
}

/// What comes after the event `seq` with this hash.
pub(crate) fn next(ledger: &Ledger, seq: u64, hash: Digest) -> Result<Next, StoreError> {
    loop {
        let events = match ledger.read(seq + 1, PAGE) {
            Err(StoreError::SequenceGap { .. }) if ledger.first_hot()? > seq + 1 => {
                return Ok(Next::Elsewhere);
            }
            events => events?,
        };
        if let Some(first) = events.first() {
            return Ok(if first.prev_hash == hash {
                Next::Events(events)
            } else {
                Next::Elsewhere
            });
        }
        let head = ledger.head()?;
        if head.seq <= seq {
            let here = (head.seq, head.hash) == (seq, hash);
            return Ok(if here { Next::End } else { Next::Elsewhere });
        }
    }
}
