//! The writer thread: group commit, the buffer, and what follows a commit.
//!
//! Commands leave in the order they came in, so a reference to an earlier
//! ticket is always resolvable. Nothing is acknowledged before its commit;
//! operational events that could not be stored stay and are tried again.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use crate::chain::{Command, Head, Verdict};
use crate::checkpoint::{Notary, SignError};
use crate::class::Durability;
use crate::draft::Prepared;
use crate::engine::Writer;
use crate::error::{AppendError, StoreError};
use crate::ledger::Appended;
use crate::ticket::Ticket;

/// Operational events wait for company until there are this many …
const BUFFER_EVENTS: usize = 100;
/// … or until the oldest has waited this long.
const BUFFER_TIME: Duration = Duration::from_millis(500);
/// The most payload in one transaction.
const GROUP_BYTES: usize = 16 << 20;
/// With this many events waiting, `record` waits too, or fails if storage does.
const BACKLOG: usize = 50_000;
/// How often an idle writer looks whether maintenance is due.
const IDLE: Duration = Duration::from_secs(1);

/// Where the outcome of a command goes.
#[derive(Debug)]
pub(crate) enum Reply {
    /// Nobody waits: the command's ticket is enough.
    Ticket,
    /// A task waits.
    Task(oneshot::Sender<Result<Appended, AppendError>>),
    /// A thread waits.
    Thread(std::sync::mpsc::SyncSender<Result<Appended, AppendError>>),
}

impl Reply {
    fn send(self, result: Result<Appended, AppendError>) {
        // A caller that no longer waits does not need the answer.
        match self {
            Self::Ticket => {}
            Self::Task(sender) => drop(sender.send(result)),
            Self::Thread(sender) => drop(sender.send(result)),
        }
    }
}

/// The commands that wait for the writer.
#[derive(Debug)]
pub(crate) struct Queue {
    /// The most events in one transaction.
    group_events: usize,
    state: Mutex<State>,
    work: Condvar,
    space: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(Command, Reply)>,
    events: usize,
    /// Someone waits for an answer, so there is no reason to gather more.
    urgent: bool,
    /// When the oldest buffered event came in.
    oldest: Option<Instant>,
    /// The last commit failed.
    failing: bool,
    /// After a failure, when to try again without being asked.
    retry_at: Option<Instant>,
    /// The writer sleeps, and nobody has woken it yet: waking it once is
    /// enough, and each time costs a system call.
    asleep: bool,
    /// How many wait for space.
    crowded_out: usize,
    closing: bool,
}

impl State {
    /// When what waits has to be written; none if nothing waits.
    fn due(&self, now: Instant) -> Option<Instant> {
        if self.waiting.is_empty() {
            None
        } else if self.urgent || self.closing {
            Some(now)
        } else if self.retry_at.is_some() {
            self.retry_at
        } else if self.events >= BUFFER_EVENTS {
            Some(now)
        } else {
            self.oldest.map(|oldest| oldest + BUFFER_TIME)
        }
    }
}

impl Queue {
    /// A queue whose groups hold at most `group_events`, or one command.
    pub(crate) fn new(group_events: usize) -> Self {
        Self {
            group_events,
            state: Mutex::default(),
            work: Condvar::new(),
            space: Condvar::new(),
        }
    }

    /// Hands a command to the writer.
    pub(crate) fn push(&self, command: Command, reply: Reply) -> Result<(), AppendError> {
        let mut state = self.lock();
        let buffered = matches!(reply, Reply::Ticket);
        while buffered && state.events >= BACKLOG && !state.closing {
            if state.failing {
                return Err(AppendError::Backlog {
                    events: state.events,
                });
            }
            state.crowded_out += 1;
            state = self
                .space
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.crowded_out -= 1;
        }
        if state.closing {
            return Err(AppendError::Closed);
        }
        let (idle, before) = (state.waiting.is_empty(), state.events);
        state.events += command.prepared.len();
        if idle {
            state.oldest = Some(Instant::now());
        }
        state.urgent |= !buffered || command.durability == Durability::Security;
        state.waiting.push_back((command, reply));
        // The writer has to hear of the first event to set its alarm, and of
        // the one that fills the buffer; in between it may sleep on.
        let filled = before < BUFFER_EVENTS && state.events >= BUFFER_EVENTS;
        if state.asleep && (state.urgent || idle || filled) {
            state.asleep = false;
            drop(state);
            self.work.notify_one();
        }
        Ok(())
    }

    /// Tells the writer to write what waits and end.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.work.notify_one();
        self.space.notify_all();
    }

    /// How many events wait to be written.
    pub(crate) fn backlog(&self) -> usize {
        self.lock().events
    }

    /// Whether the last commit failed, and none has succeeded since.
    pub(crate) fn is_failing(&self) -> bool {
        self.lock().failing
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next group, or none when the queue is closed and empty. An empty
    /// group means that there was nothing to do for a while.
    fn take(&self) -> Option<Vec<(Command, Reply)>> {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let due = state.due(now);
            if due.is_some_and(|due| due <= now) {
                return Some(self.drain(&mut state));
            }
            if state.closing {
                return None;
            }
            let pause = due.map_or(IDLE, |due| due.saturating_duration_since(now).min(IDLE));
            state.asleep = true;
            let (guard, timeout) = self
                .work
                .wait_timeout(state, pause)
                .unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.asleep = false;
            if timeout.timed_out() && state.waiting.is_empty() {
                return Some(Vec::new());
            }
        }
    }

    fn drain(&self, state: &mut State) -> Vec<(Command, Reply)> {
        let (mut count, mut events, mut bytes) = (0, 0, 0);
        for (command, _) in &state.waiting {
            let size: usize = command.prepared.iter().map(payload_bytes).sum();
            let full =
                events + command.prepared.len() > self.group_events || bytes + size > GROUP_BYTES;
            if count > 0 && full {
                break;
            }
            count += 1;
            events += command.prepared.len();
            bytes += size;
        }
        let group: Vec<_> = state.waiting.drain(..count).collect();
        state.events -= events;
        state.retry_at = None;
        if state.waiting.is_empty() {
            state.urgent = false;
            state.oldest = None;
        } else {
            state.oldest = Some(Instant::now());
        }
        if state.crowded_out > 0 {
            self.space.notify_all();
        }
        group
    }

    /// Puts back what may be tried again, ahead of everything newer.
    fn put_back(&self, group: Vec<(Command, Reply)>) {
        let mut state = self.lock();
        for entry in group.into_iter().rev() {
            state.events += entry.0.prepared.len();
            state.waiting.push_front(entry);
        }
        state.retry_at = Some(Instant::now() + BUFFER_TIME);
    }

    fn set_failing(&self, failing: bool) {
        let mut state = self.lock();
        if state.failing != failing {
            state.failing = failing;
            self.space.notify_all();
        }
    }
}

fn payload_bytes(prepared: &Prepared) -> usize {
    prepared.event.payload.as_str().len()
}

/// Everything the writer thread owns.
#[derive(Debug)]
pub(crate) struct WriterLoop {
    pub(crate) queue: Arc<Queue>,
    pub(crate) writer: Writer,
    /// Ticks with the head's `seq` after each commit.
    pub(crate) commits: watch::Sender<u64>,
    pub(crate) notary: Option<Notary>,
}

impl WriterLoop {
    /// Writes until the queue is closed and empty.
    pub(crate) fn run(mut self) {
        while let Some(group) = self.queue.take() {
            if !group.is_empty() && !self.write(group) {
                break;
            }
            if let Err(error) = self.writer.maintain() {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "ledger maintenance failed"
                );
            }
        }
        self.end();
    }

    /// Commits one group; false if the ledger closes and it can't be written.
    fn write(&mut self, group: Vec<(Command, Reply)>) -> bool {
        let (mut commands, replies): (Vec<_>, Vec<_>) = group.into_iter().unzip();
        let durability = commands
            .iter()
            .map(|command| command.durability)
            .max()
            .unwrap_or(Durability::Operational);
        match self.writer.commit(&mut commands, durability) {
            Ok(head) => {
                self.queue.set_failing(false);
                self.flush(&mut commands);
                acknowledge(commands, replies, &head);
                self.commits.send_replace(head.seq);
                self.notarise(&head);
                true
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "ledger commit failed"
                );
                self.queue.set_failing(true);
                let kept = refuse(commands, replies, &error);
                self.keep(kept, &error)
            }
        }
    }

    /// Makes everything durable if a command without events asks for it.
    fn flush(&mut self, commands: &mut [Command]) {
        if commands.iter().any(|command| command.prepared.is_empty())
            && let Err(error) = self.writer.sync()
        {
            for command in commands.iter_mut().filter(|c| c.prepared.is_empty()) {
                command.verdict = Verdict::Refused(AppendError::Store(error.clone()));
            }
        }
    }

    /// Operational events stay for another try, unless there will be none.
    fn keep(&mut self, kept: Vec<(Command, Reply)>, error: &StoreError) -> bool {
        let closing = self.queue.lock().closing;
        // What may have been stored must not be stored twice.
        if closing || matches!(error, StoreError::UnknownOutcome(_)) {
            lose(&kept);
            return !closing;
        }
        self.queue.put_back(kept);
        true
    }

    /// Signs a checkpoint when enough events have come since the last.
    fn notarise(&mut self, head: &Head) {
        let Some(notary) = &mut self.notary else {
            return;
        };
        if !notary.is_due(head.seq) {
            return;
        }
        // A checkpoint of events that a power cut could undo would accuse an
        // honest ledger of truncation.
        let signed = self
            .writer
            .sync()
            .map_err(SignError::from)
            .and_then(|()| notary.sign(head));
        if let Err(error) = signed {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "ledger checkpoint failed"
            );
        }
    }

    /// The last checkpoint, and the end of every ticket still open.
    fn end(mut self) {
        let left: Vec<_> = self.queue.lock().waiting.drain(..).collect();
        lose(&left);
        for (_, reply) in left {
            reply.send(Err(AppendError::Closed));
        }
        // An empty group only reads the head, under the writers' lock.
        if self.notary.is_some()
            && let Ok(head) = self.writer.commit(&mut [], Durability::Security)
            && let Some(notary) = &mut self.notary
            && notary.is_behind(head.seq)
        {
            notary.force();
            self.notarise(&head);
        }
    }
}

fn lose(commands: &[(Command, Reply)]) {
    for (command, _) in commands {
        command.ticket.iter().for_each(Ticket::lose);
    }
}

/// Answers everybody in one go, so that who is woken by the first answer
/// finds the others too; the events are freed after that.
fn acknowledge(mut commands: Vec<Command>, replies: Vec<Reply>, head: &Head) {
    for (command, reply) in commands.iter_mut().zip(replies) {
        match std::mem::take(&mut command.verdict) {
            Verdict::Refused(error) => {
                command.ticket.iter().for_each(Ticket::lose);
                reply.send(Err(error));
            }
            Verdict::Sealed | Verdict::Waiting => {
                let first = command.prepared.first().map_or(0, |p| p.event.seq);
                let last = command.prepared.last();
                if let (Some(ticket), Some(last)) = (&command.ticket, last) {
                    ticket.resolve(last.event.seq);
                }
                reply.send(Ok(Appended {
                    first_seq: first,
                    last_seq: last.map_or(0, |p| p.event.seq),
                    hash: last.map_or(head.hash, |p| p.event.hash),
                    epoch: head.epoch,
                }));
            }
        }
    }
}

/// Answers those who wait; gives back what nobody waits for.
fn refuse(
    commands: Vec<Command>,
    replies: Vec<Reply>,
    error: &StoreError,
) -> Vec<(Command, Reply)> {
    let mut kept = Vec::new();
    for (command, reply) in commands.into_iter().zip(replies) {
        match reply {
            Reply::Ticket => kept.push((command, Reply::Ticket)),
            reply => reply.send(Err(AppendError::Store(error.clone()))),
        }
    }
    kept
}
