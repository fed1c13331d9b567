//! The sequencer's thread: gather, decide, append, show.
//!
//! Two states: readers' (`confirmed`) and the one that is decided on, which
//! may be ahead by the group that is being decided and, while readers are held
//! back, by what they have not seen. When a group was not appended, that second
//! state is thrown away. Never answers a job before its group is committed.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use fluffy_base::Clock;
use fluffy_ledger::{
    Aggregate, AppendError, Appended, Batch, Draft, DraftError, Event, Ledger, StoreError,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::{
    Answer, Offer, Recall, Seen, SequencerOptions, Shared, Since, SubmitError, Waiting, lock,
};
use crate::fold::{self, Decided, Fold, FoldError, Machine, Next, Position};

/// The most events in one append, unless one job has more.
const GROUP: usize = 512;
/// How often the ledger is looked at when nobody tells of news.
pub(super) const POLL: Duration = Duration::from_millis(200);
/// How long a job is decided anew because others got ahead.
const CONTENTION: Duration = Duration::from_secs(10);

/// Everything the thread owns.
pub(super) struct Turns<M: Machine> {
    ledger: Ledger,
    shared: Arc<Shared<M>>,
    recall: Recall<M>,
    archive: Option<PathBuf>,
    clock: Arc<dyn Clock>,
    since: Since,
    seen: Seen,
    jobs: mpsc::Receiver<Waiting<M>>,
    /// The state at the end of the ledger; none if it was thrown away.
    tentative: Option<Fold<M>>,
    /// Where the ledger ends as far as we know.
    end: End,
    /// What is committed and readers have not seen.
    unseen: VecDeque<Event>,
    looked: Instant,
    /// Where the ledger ended at some moment, while we are not there.
    ahead: Option<(Instant, u64)>,
}

/// The last event that we know.
#[derive(Debug, Clone, Copy)]
struct End {
    position: Position,
    hash: fluffy_base::Digest,
}

/// Jobs that are appended together.
struct Group<M: Machine> {
    jobs: Vec<(Waiting<M>, M::Reply, u64)>,
    drafts: Vec<Draft>,
    events: Vec<Event>,
    /// How many of the events the tentative state holds already.
    applied: usize,
}

impl<M: Machine> Turns<M> {
    pub(super) fn new(
        ledger: Ledger,
        shared: Arc<Shared<M>>,
        options: SequencerOptions<M>,
        jobs: mpsc::Receiver<Waiting<M>>,
    ) -> Self {
        let end = {
            let confirmed = shared.confirmed.read();
            End::of(&confirmed.unwrap_or_else(PoisonError::into_inner))
        };
        Self {
            ledger,
            shared,
            recall: options.recall,
            archive: options.archive,
            clock: options.clock,
            since: options.since,
            seen: options.seen,
            jobs,
            tentative: None,
            end,
            unseen: VecDeque::new(),
            looked: Instant::now(),
            ahead: None,
        }
    }

    /// Takes turns until the last handle lets go.
    pub(super) fn run(mut self) {
        let runtime = match Builder::new_current_thread().enable_time().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "no runtime");
                return;
            }
        };
        while let Some(mut waiting) = self.gather(&runtime) {
            self.show();
            while !waiting.is_empty() {
                self.turn(&mut waiting);
            }
            if self.looked.elapsed() >= POLL {
                self.look();
            }
        }
        self.show();
        drop(lock(&self.shared.offered).take());
    }

    /// What waits, perhaps nothing; none when no job can come any more.
    fn gather(&mut self, runtime: &Runtime) -> Option<VecDeque<Waiting<M>>> {
        let mut waiting = VecDeque::new();
        let (jobs, ledger, seq) = (&mut self.jobs, &self.ledger, self.end.position.seq);
        let news = runtime.block_on(async {
            tokio::select! {
                biased;
                job = jobs.recv() => {
                    waiting.push_back(job?);
                    Some(false)
                }
                () = ledger.goes_past(seq) => Some(true),
                () = sleep(POLL) => Some(true),
            }
        })?;
        if news {
            self.look();
        }
        while let Ok(job) = self.jobs.try_recv() {
            waiting.push_back(job);
        }
        Some(waiting)
    }

    /// Takes in what others appended, if the ledger answers.
    fn look(&mut self) {
        self.looked = Instant::now();
        let offered = lock(&self.shared.offered).take();
        if let Some(Offer { fold, done }) = offered {
            // Whoever offered it may have stopped waiting.
            let _ = done.send(self.install(fold));
        }
        if let Err(error) = self.catch_up() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the state can't follow the ledger"
            );
        }
    }

    /// Decides and appends one group of what waits.
    fn turn(&mut self, waiting: &mut VecDeque<Waiting<M>>) {
        if let Some(halt) = lock(&self.shared.halted).clone() {
            return refuse(waiting.drain(..), &SubmitError::Halted(halt));
        }
        let group = match self.decide(waiting) {
            Ok(group) => group,
            Err(error) => {
                self.tentative = None;
                return refuse(waiting.drain(..), &SubmitError::Halted(error));
            }
        };
        if group.jobs.is_empty() {
            return;
        }
        let asked = Instant::now();
        match self.append(&group.drafts) {
            Ok(appended) => {
                self.committed(group, appended);
                // It was appended because the ledger ended where we thought.
                self.confirm(asked);
            }
            Err(error) => {
                if group.applied > 0 {
                    self.tentative = None;
                }
                self.not_committed(group, error, waiting);
            }
        }
    }

    /// Decides what waits, in order, until the group is full.
    fn decide(&mut self, waiting: &mut VecDeque<Waiting<M>>) -> Result<Group<M>, FoldError> {
        let mut tentative = match self.tentative.take() {
            Some(tentative) => tentative,
            None => self.ahead()?,
        };
        let mut group = Group {
            jobs: Vec::new(),
            drafts: Vec::new(),
            events: Vec::new(),
            applied: 0,
        };
        while let Some(mut next) = waiting.pop_front() {
            if next.reply.is_closed() {
                continue;
            }
            // The last job of a group is followed by nobody who needs to see
            // it, and a state that was not touched need not be thrown away.
            group.apply_to(&mut tentative)?;
            let Decided { drafts, reply } = tentative.machine.decide(&mut next.job);
            if !group.jobs.is_empty() && group.drafts.len() + drafts.len() > GROUP {
                waiting.push_front(next);
                break;
            }
            let first = self.end.position.seq + 1 + group.drafts.len() as u64;
            match foresee(&tentative.machine, drafts, first, &*self.clock) {
                Ok((drafts, events)) => {
                    if let Some(error) = self.unreadable(&tentative.machine, &events) {
                        refuse([next].into_iter(), &error);
                        continue;
                    }
                    let last = first - 1 + events.len() as u64;
                    group.drafts.extend(drafts);
                    group.events.extend(events);
                    group.jobs.push((next, reply, last));
                }
                Err(error) => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "a decision can't be recorded"
                    );
                    refuse([next].into_iter(), &error.into());
                }
            }
        }
        self.tentative = Some(tentative);
        Ok(group)
    }

    /// Why events must wait that not every replica can read yet.
    fn unreadable(&self, machine: &M, events: &[Event]) -> Option<SubmitError> {
        let readers = machine.readers();
        events.iter().find_map(|event| {
            let needed = (self.since)(&event.event_type, event.event_version);
            (needed > readers).then(|| SubmitError::Unreadable {
                event_type: event.event_type.clone(),
                needed,
                readers,
            })
        })
    }

    /// Readers' state with what they have not seen.
    fn ahead(&self) -> Result<Fold<M>, FoldError> {
        let confirmed = self.shared.confirmed.read();
        let mut fold = confirmed.unwrap_or_else(PoisonError::into_inner).clone();
        self.unseen
            .iter()
            .try_for_each(|event| fold.advance(event))?;
        Ok(fold)
    }

    /// Appends if the ledger ends where we know it to; with nothing to append,
    /// says whether it does.
    fn append(&self, drafts: &[Draft]) -> Result<Option<Appended>, AppendError> {
        let End { position, hash } = self.end;
        if drafts.is_empty() {
            let head = self.ledger.head()?;
            if (head.seq, head.hash) == (position.seq, hash) {
                return Ok(None);
            }
            return Err(AppendError::HeadMoved {
                expected: position.seq,
                current: head.seq,
                epoch: head.epoch,
            });
        }
        let batch = Batch::new(drafts.to_vec()).expecting_head(position.seq, hash);
        self.ledger.append_blocking(batch).map(Some)
    }

    fn committed(&mut self, mut group: Group<M>, appended: Option<Appended>) {
        if let Some(appended) = appended {
            // The hashes between are nobody's concern; the last one is where
            // the next group follows.
            if let Some(last) = group.events.last_mut() {
                last.hash = appended.hash;
            }
            if let Some(tentative) = &mut self.tentative {
                match group.apply_to(tentative) {
                    Ok(()) => tentative.hash = appended.hash,
                    Err(error) => self.halt(&error),
                }
            }
            self.end.position.seq = appended.last_seq;
            self.end.hash = appended.hash;
            self.unseen.extend(group.events);
            self.show();
        }
        let epoch = self.end.position.epoch;
        for (job, reply, seq) in group.jobs {
            let position = Position { epoch, seq };
            // A caller that no longer waits does not need the answer.
            drop(job.reply.send(Ok(Answer { reply, position })));
        }
    }

    /// Says why nothing was appended, or puts the jobs back for another try.
    fn not_committed(
        &mut self,
        group: Group<M>,
        error: AppendError,
        waiting: &mut VecDeque<Waiting<M>>,
    ) {
        let jobs = group.jobs.into_iter().map(|(job, ..)| job);
        let refusal = match error {
            AppendError::HeadMoved { .. } => match self.catch_up() {
                Ok(()) => {
                    let (late, again): (Vec<_>, Vec<_>) =
                        jobs.partition(|job| job.since.elapsed() > CONTENTION);
                    refuse(late.into_iter(), &SubmitError::Busy);
                    again
                        .into_iter()
                        .rev()
                        .for_each(|job| waiting.push_front(job));
                    return;
                }
                Err(FoldError::Store(error)) => error.into(),
                Err(halt) => SubmitError::Halted(halt),
            },
            AppendError::Store(StoreError::UnknownOutcome(_)) => SubmitError::OutcomeUnknown(error),
            AppendError::ChainBroken { seq } => SubmitError::Broken { seq },
            AppendError::Closed => SubmitError::Closed,
            error => SubmitError::Unavailable(Arc::new(error)),
        };
        refuse(jobs, &refusal);
    }

    /// Takes in everything that others appended.
    fn catch_up(&mut self) -> Result<(), FoldError> {
        loop {
            let asked = Instant::now();
            let End { position, hash } = self.end;
            match fold::next(&self.ledger, position.seq, hash)? {
                Next::Events(events) => {
                    let mut tentative = match self.tentative.take() {
                        Some(tentative) => tentative,
                        None => self.ahead()?,
                    };
                    for event in events {
                        if let Err(error) = tentative.advance(&event) {
                            self.end = End::of(&tentative);
                            self.tentative = Some(tentative);
                            self.show();
                            self.halt(&error);
                            return Err(error);
                        }
                        self.unseen.push_back(event);
                    }
                    self.end = End::of(&tentative);
                    self.tentative = Some(tentative);
                    self.show();
                    self.come_closer()?;
                }
                Next::End => {
                    self.ahead = None;
                    self.confirm(asked);
                    return Ok(());
                }
                Next::Elsewhere => self.start_again()?,
            }
        }
    }

    /// Takes note that readers see all that was committed before a moment,
    /// unless something is kept from them.
    fn confirm(&self, moment: Instant) {
        if self.unseen.is_empty() && lock(&self.shared.halted).is_none() {
            let mut as_of = lock(&self.shared.as_of);
            *as_of = moment.max(*as_of);
        }
    }

    /// Where others append without a pause the end is never met: then it is
    /// enough to have come to where it was.
    fn come_closer(&mut self) -> Result<(), StoreError> {
        if let Some((moment, seq)) = self.ahead
            && self.end.position.seq >= seq
        {
            self.confirm(moment);
            self.ahead = None;
        }
        let age = lock(&self.shared.as_of).elapsed();
        if self.ahead.is_none() && age > POLL {
            let asked = Instant::now();
            self.ahead = Some((asked, self.ledger.head()?.seq));
        }
        Ok(())
    }

    /// Takes a fold of this ledger for the state, once it has caught up.
    fn install(&mut self, mut fold: Fold<M>) -> Result<Position, FoldError> {
        if !fold.finish(&self.ledger)? {
            return Err(FoldError::Interrupted);
        }
        Ok(self.hold(fold))
    }

    /// From now on this is the state, for readers and for decisions.
    fn hold(&mut self, fold: Fold<M>) -> Position {
        self.ahead = None;
        self.tentative = None;
        self.unseen.clear();
        self.end = End::of(&fold);
        let position = fold.position;
        let confirmed = self.shared.confirmed.write();
        *confirmed.unwrap_or_else(PoisonError::into_inner) = fold;
        *lock(&self.shared.halted) = None;
        self.shared.positions.send_replace(position);
        position
    }

    /// Folds a ledger that was restored, while readers see the state before.
    fn start_again(&mut self) -> Result<(), FoldError> {
        tracing::warn!(
            seq = self.end.position.seq,
            "the ledger was restored; its state is folded anew"
        );
        let mut fold = fold::refold(&self.ledger, &*self.recall, self.archive.as_deref())?;
        self.open_epoch(&mut fold)?;
        self.hold(fold);
        Ok(())
    }

    /// Opens a new epoch if this ledger has lost what we knew of it and nobody
    /// has opened one since. Nodes and clients that have seen more then go by
    /// what is here now.
    fn open_epoch(&self, fold: &mut Fold<M>) -> Result<(), FoldError> {
        let known = self.end;
        let is_lost = self.is_lost(known)?;
        while is_lost && fold.position.epoch <= known.position.epoch {
            // Above every epoch that somebody may have heard of from us.
            let epochs = fold.position.epoch..=known.position.epoch;
            let batch = Batch::new(epochs.map(|_| fold::restored(&self.ledger)).collect());
            let batch = batch.expecting_head(fold.position.seq, fold.hash);
            match self.ledger.append_blocking(batch) {
                // Somebody else appended something; perhaps the epoch.
                Ok(_) | Err(AppendError::HeadMoved { .. }) => {}
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "no new epoch could be opened"
                    );
                    return Err(FoldError::Unopened);
                }
            }
            // Put back once more meanwhile: from the start, at the next look.
            if !fold.finish(&self.ledger)? {
                return Err(FoldError::Unopened);
            }
        }
        Ok(())
    }

    /// Whether the ledger does not hold an event any more that it held; one
    /// that was archived is not lost.
    fn is_lost(&self, known: End) -> Result<bool, FoldError> {
        let seq = known.position.seq;
        if self.ledger.head()?.seq < seq {
            return Ok(true);
        }
        if seq == 0 || self.ledger.first_hot()? > seq {
            return Ok(false);
        }
        let there = self.ledger.read(seq, 1)?;
        Ok(there.first().is_none_or(|event| event.hash != known.hash))
    }

    /// Shows readers what is committed, unless they are held back.
    fn show(&mut self) {
        if self.unseen.is_empty() || self.shared.held.load(Ordering::Acquire) {
            return;
        }
        let mut confirmed = self
            .shared
            .confirmed
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let mut halt = None;
        let mut shown = Vec::with_capacity(self.unseen.len());
        while let Some(event) = self.unseen.pop_front() {
            if let Err(error) = confirmed.advance(&event) {
                halt = Some(error);
                break;
            }
            shown.push(event);
        }
        let position = confirmed.position;
        drop(confirmed);
        let now = self.clock.now();
        for event in &shown {
            self.shared.lag.count(event.occurred_at, now);
            (self.seen)(event);
        }
        self.shared.positions.send_replace(position);
        if let Some(error) = halt {
            self.halt(&error);
        }
    }

    fn halt(&self, error: &FoldError) {
        tracing::error!(
            error = error as &dyn std::error::Error,
            "the state stops here"
        );
        *lock(&self.shared.halted) = Some(error.clone());
    }
}

impl End {
    fn of<M>(fold: &Fold<M>) -> Self {
        Self {
            position: fold.position,
            hash: fold.hash,
        }
    }
}

impl<M: Machine> Group<M> {
    /// Folds in the events that the state does not hold yet.
    fn apply_to(&mut self, tentative: &mut Fold<M>) -> Result<(), FoldError> {
        for event in self.events.iter().skip(self.applied) {
            tentative.advance(event)?;
            self.applied += 1;
        }
        Ok(())
    }
}

/// The drafts with the events that they will be.
fn foresee<M: Machine>(
    machine: &M,
    mut drafts: Vec<Draft>,
    first: u64,
    clock: &dyn Clock,
) -> Result<(Vec<Draft>, Vec<Event>), DraftError> {
    let now = clock.now();
    let mut versions: HashMap<Aggregate, u64> = HashMap::new();
    let mut events = Vec::with_capacity(drafts.len());
    for (seq, draft) in (first..).zip(&mut drafts) {
        let (_, aggregate) = draft.aggregate();
        let version = versions
            .entry(aggregate.clone())
            .or_insert_with(|| machine.version(aggregate));
        *version += 1;
        events.push(draft.foresee(seq, *version, now)?);
    }
    Ok((drafts, events))
}

fn refuse<M: Machine>(jobs: impl Iterator<Item = Waiting<M>>, error: &SubmitError) {
    for job in jobs {
        // A caller that no longer waits does not need the answer.
        drop(job.reply.send(Err(error.clone())));
    }
}
