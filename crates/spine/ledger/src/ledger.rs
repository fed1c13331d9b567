//! The ledger as everyone else sees it: a handle that may be cloned freely.
//!
//! Appending goes through the one writer thread behind [`crate::queue`];
//! reading goes straight to the engine and never waits for the writer. Dropping
//! the last handle writes what is buffered and signs a last checkpoint.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use fluffy_base::id::LedgerId;
use fluffy_base::{Clock, Digest, SystemClock};
use tokio::sync::{oneshot, watch};

use crate::chain::{Command, Genesis, Verdict};
use crate::checkpoint::{self, Notary, SignError, Signing};
use crate::class::Durability;
use crate::draft::{Batch, Draft, DraftError, MAX_BATCH, Prepared, SeqRef};
use crate::engine::{Engine, aggregate_key};
use crate::error::{AppendError, StoreError};
use crate::event::{Aggregate, Domain, Event};
use crate::health::OnBreak;
use crate::key::{KeyFileError, PublicKey};
use crate::queue::{Queue, Reply, WriterLoop};
use crate::sqlite;
use crate::ticket::Ticket;

/// A ledger, open for reading and appending.
#[derive(Debug, Clone)]
pub struct Ledger {
    pub(crate) shared: Arc<Shared>,
}

/// What all handles of one open ledger share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    pub(crate) commits: watch::Receiver<u64>,
    pub(crate) clock: Arc<dyn Clock>,
    queue: Arc<Queue>,
    writer: Mutex<Option<JoinHandle<()>>>,
    public_key: Option<PublicKey>,
    /// The first bad event of a break that refuses writing; 0 if none does.
    pub(crate) refused_from: AtomicU64,
}

/// How a ledger is opened.
#[derive(Debug, Clone)]
pub struct LedgerOptions {
    /// How checkpoints are signed; none means that none are.
    pub signing: Option<Signing>,
    /// Where timestamps come from.
    pub clock: Arc<dyn Clock>,
    /// What a break that [`Ledger::open_checked`] finds does to writing.
    pub on_break: OnBreak,
}

impl Default for LedgerOptions {
    fn default() -> Self {
        Self {
            signing: None,
            clock: Arc::new(SystemClock),
            on_break: OnBreak::default(),
        }
    }
}

/// Why a ledger could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenLedgerError {
    /// The storage could not be opened.
    #[error("the ledger's storage can't be opened")]
    Store(#[from] StoreError),
    /// The key that signs checkpoints can't be used.
    #[error("the ledger's signing key can't be used")]
    Key(#[from] KeyFileError),
    /// The checkpoints signed before can't be read.
    #[error("the ledger's checkpoints can't be read")]
    Checkpoints(#[from] SignError),
    /// The system gave no thread for the writer.
    #[error("no thread for the ledger's writer")]
    Thread(#[source] std::io::Error),
}

/// Where a batch ended up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The position of its first event; 0 for an empty batch.
    pub first_seq: u64,
    /// The position of its last event.
    pub last_seq: u64,
    /// The hash of its last event.
    pub hash: Digest,
    /// The epoch of the ledger.
    pub epoch: u64,
}

/// The end of the chain, as readers remember it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerHead {
    /// How many events there are.
    pub seq: u64,
    /// The hash of the last one.
    pub hash: Digest,
    /// The epoch; positions are only comparable within one.
    pub epoch: u64,
    /// The root of the Merkle tree.
    pub root: Digest,
}

impl Ledger {
    /// Opens the SQLite ledger in a directory, creating it if there is none.
    ///
    /// # Errors
    /// The storage or the signing key can't be used.
    pub fn open(directory: &Path, options: LedgerOptions) -> Result<Self, OpenLedgerError> {
        let genesis = Genesis {
            ledger_id: LedgerId::generate(),
            created_at: options.clock.now(),
        };
        let store = sqlite::Store::open(directory, &genesis)?;
        Self::start(Engine::Sqlite(store), options)
    }

    /// Starts the writer of an open engine.
    pub(crate) fn start(engine: Engine, options: LedgerOptions) -> Result<Self, OpenLedgerError> {
        let LedgerOptions { signing, clock, .. } = options;
        let head = engine.head()?;
        let notary = match signing {
            Some(signing) => {
                let ledger = engine.genesis().ledger_id;
                let last = checkpoint::last_signed(&signing.checkpoints, ledger)?;
                Some(Notary::new(signing, ledger, last)?)
            }
            None => None,
        };
        let public_key = notary.as_ref().map(Notary::public_key);
        let (ticks, commits) = watch::channel(head.seq);
        let queue = Arc::new(Queue::new(engine.group_events()));
        let writer = WriterLoop {
            queue: Arc::clone(&queue),
            writer: engine.writer()?,
            commits: ticks,
            notary,
        };
        let thread = thread::Builder::new().name("ledger-writer".to_owned());
        let thread = thread
            .spawn(move || writer.run())
            .map_err(OpenLedgerError::Thread)?;
        Ok(Self {
            shared: Arc::new(Shared {
                engine: Arc::new(engine),
                commits,
                clock,
                queue,
                writer: Mutex::new(Some(thread)),
                public_key,
                refused_from: AtomicU64::new(0),
            }),
        })
    }

    /// Appends a batch, all or nothing, and waits until it is stored.
    ///
    /// # Errors
    /// A conflict, an invalid draft, or storage that fails; then nothing of
    /// the batch is in the ledger.
    pub async fn append(&self, batch: impl Into<Batch>) -> Result<Appended, AppendError> {
        let command = self.command(batch.into())?;
        let (sender, answer) = oneshot::channel();
        self.shared.queue.push(command, Reply::Task(sender))?;
        answer.await.map_err(|_| AppendError::Closed)?
    }

    /// As [`Ledger::append`], for a caller that may block.
    ///
    /// # Errors
    /// As [`Ledger::append`].
    pub fn append_blocking(&self, batch: impl Into<Batch>) -> Result<Appended, AppendError> {
        self.wait(self.command(batch.into())?)
    }

    /// Hands over one event and returns at once. Operational events may wait
    /// in the buffer; one of the security class is written right away, and
    /// its caller waits for the ticket.
    ///
    /// # Errors
    /// The draft is invalid, or too much waits because storage fails.
    pub fn record(&self, draft: Draft) -> Result<Ticket, AppendError> {
        let mut command = self.command(Batch::from(draft))?;
        let ticket = Ticket::new(self.shared.commits.clone());
        command.ticket = Some(ticket.clone());
        self.shared.queue.push(command, Reply::Ticket)?;
        Ok(ticket)
    }

    /// Waits until everything recorded so far is on disk.
    ///
    /// # Errors
    /// The storage fails; what was recorded stays in the buffer.
    pub async fn flush(&self) -> Result<(), AppendError> {
        let (sender, answer) = oneshot::channel();
        self.shared.queue.push(barrier(), Reply::Task(sender))?;
        answer.await.map_err(|_| AppendError::Closed)?.map(drop)
    }

    /// As [`Ledger::flush`], for a caller that may block.
    ///
    /// # Errors
    /// As [`Ledger::flush`].
    pub fn flush_blocking(&self) -> Result<(), AppendError> {
        self.wait(barrier()).map(drop)
    }

    /// The record the ledger started from.
    #[must_use]
    pub fn genesis(&self) -> Genesis {
        self.shared.engine.genesis()
    }

    /// The ledger's id.
    #[must_use]
    pub fn id(&self) -> LedgerId {
        self.genesis().ledger_id
    }

    /// The key that signs checkpoints, if they are signed.
    #[must_use]
    pub fn public_key(&self) -> Option<PublicKey> {
        self.shared.public_key
    }

    /// The end of the chain as committed.
    ///
    /// # Errors
    /// The storage can't be read.
    pub fn head(&self) -> Result<LedgerHead, StoreError> {
        let head = self.shared.engine.head()?;
        Ok(LedgerHead {
            seq: head.seq,
            hash: head.hash,
            epoch: head.epoch,
            root: head.frontier.root(),
        })
    }

    /// How many events wait to be written.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.shared.queue.backlog()
    }

    /// Whether the storage failed last time and has not worked since. What is
    /// recorded now would sit in the buffer until it does.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.shared.queue.is_failing()
    }

    /// The events from `from` on, in order and without a hole; at most
    /// `limit` and about four megabytes. Empty at the end of the chain.
    ///
    /// # Errors
    /// The storage can't be read, or an event is missing or malformed.
    pub fn read(&self, from: u64, limit: usize) -> Result<Vec<Event>, StoreError> {
        self.shared.engine.read(from.max(1), limit)
    }

    /// The events of one aggregate after a version, oldest first.
    ///
    /// # Errors
    /// The storage can't be read.
    pub fn read_aggregate(
        &self,
        domain: Domain,
        aggregate: &Aggregate,
        after_version: u64,
        limit: usize,
    ) -> Result<Vec<Event>, StoreError> {
        let key = aggregate_key(domain, aggregate);
        self.shared
            .engine
            .read_aggregate(&key, after_version, limit)
    }

    /// The version of an aggregate, 0 if it has no event.
    ///
    /// # Errors
    /// The storage can't be read.
    pub fn version(&self, domain: Domain, aggregate: &Aggregate) -> Result<u64, StoreError> {
        self.shared
            .engine
            .version(&aggregate_key(domain, aggregate))
    }

    /// The newest `count` events that `wanted` picks, oldest first.
    ///
    /// # Errors
    /// The storage can't be read.
    pub fn last_where(
        &self,
        count: usize,
        wanted: impl Fn(&Event) -> bool,
    ) -> Result<Vec<Event>, StoreError> {
        const STRIDE: u64 = 1_000;
        let first = self.first_hot()?;
        let mut end = self.head()?.seq;
        let mut found: Vec<Event> = Vec::new();
        while end >= first && found.len() < count {
            let start = end.saturating_sub(STRIDE - 1).max(first);
            let picked = self.read_range(start, end)?.into_iter().filter(&wanted);
            let mut picked: Vec<Event> = picked.collect();
            picked.reverse();
            found.append(&mut picked);
            end = start - 1;
        }
        found.truncate(count);
        found.reverse();
        Ok(found)
    }

    /// The position of the first event that has not been archived away.
    ///
    /// # Errors
    /// The storage can't be read.
    pub fn first_hot(&self) -> Result<u64, StoreError> {
        let anchor = self.shared.engine.anchor()?;
        Ok(anchor.map_or(1, |anchor| anchor.head.seq + 1))
    }

    /// Writes what is buffered, signs a last checkpoint and ends the writer.
    /// Other handles can still read.
    ///
    /// # Errors
    /// Something recorded could not be written.
    pub fn close(&self) -> Result<(), AppendError> {
        let flushed = self.flush_blocking();
        self.shared.end_writer();
        flushed
    }

    /// All events between two positions, both included.
    fn read_range(&self, start: u64, end: u64) -> Result<Vec<Event>, StoreError> {
        let mut events: Vec<Event> = Vec::new();
        let mut next = start;
        while next <= end {
            let wanted = usize::try_from(end - next + 1).unwrap_or(usize::MAX);
            let read = self.read(next, wanted)?;
            let Some(last) = read.last() else { break };
            next = last.seq + 1;
            events.extend(read);
        }
        Ok(events)
    }

    fn wait(&self, command: Command) -> Result<Appended, AppendError> {
        let (sender, answer) = mpsc::sync_channel(1);
        self.shared.queue.push(command, Reply::Thread(sender))?;
        answer.recv().map_err(|_| AppendError::Closed)?
    }

    /// As [`Ledger::append_blocking`], also while a break refuses writing.
    pub(crate) fn append_despite_break(&self, batch: Batch) -> Result<Appended, AppendError> {
        self.wait(self.prepare(batch)?)
    }

    fn command(&self, batch: Batch) -> Result<Command, AppendError> {
        match self.shared.refused_from.load(Ordering::Acquire) {
            0 => self.prepare(batch),
            seq => Err(AppendError::ChainBroken { seq }),
        }
    }

    fn prepare(&self, batch: Batch) -> Result<Command, AppendError> {
        let Batch {
            drafts,
            expected,
            after,
            at_least,
        } = batch;
        if drafts.is_empty() || drafts.len() > MAX_BATCH {
            let drafts = drafts.len();
            return Err(DraftError::BatchSize { drafts }.into());
        }
        let now = self.shared.clock.now();
        let prepared = drafts
            .into_iter()
            .map(|draft| draft.prepare(now))
            .collect::<Result<Vec<Prepared>, _>>()?;
        self.check_tickets(&prepared)?;
        let needed = prepared.iter().map(|prepared| prepared.durability);
        Ok(Command {
            durability: needed.fold(at_least, Durability::max),
            prepared,
            expected,
            after,
            ticket: None,
            verdict: Verdict::Waiting,
        })
    }

    fn check_tickets(&self, prepared: &[Prepared]) -> Result<(), AppendError> {
        let foreign = |reference: &Option<SeqRef>| match reference {
            Some(SeqRef::Pending(ticket)) => !ticket.belongs_to(&self.shared.commits),
            _ => false,
        };
        if prepared
            .iter()
            .any(|p| foreign(&p.causation) || foreign(&p.decision))
        {
            return Err(AppendError::ForeignTicket);
        }
        Ok(())
    }
}

/// A command without events: by the time it is answered, everything before it
/// is on disk.
fn barrier() -> Command {
    Command {
        prepared: Vec::new(),
        expected: Vec::new(),
        after: None,
        durability: Durability::Security,
        ticket: None,
        verdict: Verdict::Waiting,
    }
}

impl Shared {
    fn end_writer(&self) {
        self.queue.close();
        let thread = self
            .writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the ledger's writer panicked");
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.end_writer();
    }
}
