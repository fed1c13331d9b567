//! What workloads printed: the last lines in memory, days of it on the disk.
//!
//! Entries come at least once and are kept once, and are acknowledged when they
//! are durable. Who looks is served from memory (`ring`) where that has all of
//! it, else from the disk (`store`). Printing never waits for reading. Next:
//! `count` says what is new, `query` what is asked for.

mod count;
mod query;
mod ring;
mod segment;
mod store;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use fluffy_api::node::v1;
use fluffy_base::Clock;
use fluffy_base::id::{EnvId, NodeId, OrgId};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::aside::{Aside, AsideError, Kind};
use count::{Counted, Counter, Seen};
pub use query::{Cursor, Follower, Found, Had, Order, ParseCursorError, Query, stream_of};
pub(crate) use query::{MOST_TEXT, fitting};
use ring::{Gone, Rings};
pub use segment::Source;
pub use store::Keeping;
use store::{OLD, Store, Writer};

/// How many lines a follower may be behind before it looks where they are kept.
const FOLLOWING: usize = 1024;

/// What orgs printed on a day, as each replica counted it.
const BYTES: Kind = Kind::new("log-bytes");
/// How long that is known.
const SHARED: Duration = Duration::from_secs(2 * 24 * 3600);
/// How many counts are read at once.
const PAGE: u32 = 500;

/// How many batches are made durable at once, each a message of a node.
const TOGETHER: usize = 8;

/// One line that an instance printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Whose it is.
    pub source: Arc<Source>,
    /// Who printed it.
    pub instance: Arc<str>,
    /// In which of its boots.
    pub boot: Arc<str>,
    /// `stdout`, `stderr` or `init`.
    pub stream: Arc<str>,
    /// Its number in that stream.
    pub seq: u64,
    /// Its number among all that came here.
    pub arrival: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// What.
    pub text: Arc<str>,
    /// Whether it was longer.
    pub truncated: bool,
    /// How many lines were lost before it.
    pub dropped: u64,
}

/// Whose lines an instance prints.
#[derive(Debug, Clone)]
pub struct Printer {
    /// Whose.
    pub source: Arc<Source>,
    /// How many bytes its org may print in a day.
    pub daily: u64,
}

/// What workloads printed.
#[derive(Debug, Default)]
pub struct Logs {
    inner: Arc<Inner>,
    kept: OnceLock<Kept>,
}

#[derive(Debug)]
struct Inner {
    counter: Mutex<Counter>,
    rings: Mutex<Rings>,
    live: broadcast::Sender<LogLine>,
    /// The name of what is only in memory.
    id: String,
}

/// What is on the disk, and the way there.
#[derive(Debug)]
struct Kept {
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    pushes: Mutex<Option<mpsc::Sender<Push>>>,
    writing: Mutex<Option<JoinHandle<()>>>,
}

/// A batch that waits to be durable.
#[derive(Debug)]
struct Push {
    node: NodeId,
    entries: Vec<(Printer, v1::LogEntry)>,
    done: oneshot::Sender<io::Result<()>>,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            counter: Mutex::default(),
            rings: Mutex::default(),
            live: broadcast::Sender::new(FOLLOWING),
            // Without chance there is no TLS either, and nobody to read it.
            id: query::new_store_id().unwrap_or_else(|_| "0".repeat(16)),
        }
    }
}

impl Logs {
    /// Keeps lines on the disk from now on, and knows those that are there.
    ///
    /// # Errors
    /// The folder can't be read or written, or it was called before.
    pub async fn keep_in(&self, keeping: Keeping, clock: Arc<dyn Clock>) -> io::Result<()> {
        let now_ms = now_ms(&*clock);
        let open = move || Store::open(&keeping, now_ms);
        let (store, writer, known) = spawn_blocking(open).await.map_err(io::Error::other)??;
        {
            let mut counter = lock(&self.inner.counter);
            counter.turn(now_ms);
            counter.last_arrival = known.last_arrival;
            for ((instance, boot, stream), (seq, arrival)) in known.streams {
                let key = (instance.into(), boot.into(), stream.into());
                let lost = 0;
                counter.streams.insert(key, Seen { seq, arrival, lost });
            }
            for (org, here) in known.today {
                counter.orgs.entry(org).or_default().here = here;
            }
            *lock(&self.inner.rings) = Rings::after(Gone {
                newest_ms: known.newest_ms,
                last_arrival: known.last_arrival,
            });
        }
        let (pushes, waiting) = mpsc::channel(TOGETHER);
        let writing = write(Arc::clone(&self.inner), writer, waiting, Arc::clone(&clock));
        let kept = Kept {
            store,
            clock,
            pushes: Mutex::new(Some(pushes)),
            writing: Mutex::new(Some(tokio::spawn(writing))),
        };
        let twice = |_| io::Error::from(io::ErrorKind::AlreadyExists);
        self.kept.set(kept).map_err(twice)
    }

    /// Keeps entries that are not there yet; they are durable when it returns.
    ///
    /// # Errors
    /// They could not be written: their node has to send them again.
    pub(crate) async fn keep(
        &self,
        node: NodeId,
        entries: Vec<(Printer, v1::LogEntry)>,
    ) -> io::Result<()> {
        let Some(kept) = self.kept.get() else {
            let mut counted = Counted::default();
            let mut counter = lock(&self.inner.counter);
            for (mut printer, entry) in entries {
                // Without a clock there is no day.
                printer.daily = u64::MAX;
                counter.count(&mut counted, (node, &printer), entry);
            }
            counter.commit(&mut counted);
            drop(counter);
            self.inner.publish(counted);
            return Ok(());
        };
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        let pushes = lock(&kept.pushes).clone().ok_or_else(closed)?;
        let (done, heard) = oneshot::channel();
        let push = Push {
            node,
            entries,
            done,
        };
        pushes.send(push).await.map_err(|_| closed())?;
        heard.await.map_err(|_| closed())?
    }

    /// Whose lines an instance prints that is gone, if this node told some of
    /// them while it was not.
    pub(crate) fn source(&self, node: NodeId, instance: &str) -> Option<Arc<Source>> {
        lock(&self.inner.rings).source(node, instance)
    }

    /// The lines that are in memory of an instance, the oldest first.
    #[must_use]
    pub fn of(&self, instance: &str) -> Vec<LogLine> {
        let rings = lock(&self.inner.rings);
        let lines = rings.of.get(instance).into_iter();
        lines.flat_map(|ring| ring.lines.iter().cloned()).collect()
    }

    /// The lines that are asked for, wherever they are.
    ///
    /// # Errors
    /// What is on the disk can't be read.
    pub async fn find(&self, query: Query) -> io::Result<Found> {
        let (found, is_all) = lock(&self.inner.rings).find(&query);
        match self.kept.get() {
            Some(kept) if !is_all => {
                let store = Arc::clone(&kept.store);
                let reading = spawn_blocking(move || store.find(&query));
                reading.await.map_err(io::Error::other)?
            }
            _ => Ok(found),
        }
    }

    /// The name of what is kept here, which no other replica has.
    #[must_use]
    pub fn store_id(&self) -> &str {
        let kept = self.kept.get();
        kept.map_or(&self.inner.id, |kept| kept.store.id())
    }

    /// All lines from now on, of all instances.
    #[must_use]
    pub fn follow(&self) -> broadcast::Receiver<LogLine> {
        self.inner.live.subscribe()
    }

    /// Removes what is too old, and what is of an env that is gone.
    ///
    /// # Errors
    /// A file can't be removed or written; the next time it may.
    pub async fn tend(&self, is_live: impl Fn(EnvId) -> bool + Send + 'static) -> io::Result<()> {
        let Some(kept) = self.kept.get() else {
            return Ok(());
        };
        let (store, now_ms) = (Arc::clone(&kept.store), now_ms(&*kept.clock));
        let tended = spawn_blocking(move || store.tend(now_ms, is_live));
        tended.await.map_err(io::Error::other)?
    }

    /// What each org printed here today, and which day that is.
    #[must_use]
    pub fn today(&self) -> (u64, BTreeMap<OrgId, u64>) {
        let mut counter = lock(&self.inner.counter);
        if let Some(kept) = self.kept.get() {
            counter.turn(now_ms(&*kept.clock));
        }
        let here = counter.orgs.iter().map(|(org, bytes)| (*org, bytes.here));
        (counter.today, here.collect())
    }

    /// What an org printed today, here and elsewhere.
    #[must_use]
    pub fn used(&self, org: OrgId) -> u64 {
        let mut counter = lock(&self.inner.counter);
        if let Some(kept) = self.kept.get() {
            counter.turn(now_ms(&*kept.clock));
        }
        let bytes = counter.orgs.get(&org).copied().unwrap_or_default();
        bytes.here.saturating_add(bytes.elsewhere)
    }

    /// Tells other replicas what each org printed here today, and hears what
    /// it printed there.
    ///
    /// # Errors
    /// The store beside the ledger is not available.
    pub(crate) async fn share(&self, aside: &Aside) -> Result<(), AsideError> {
        let (day, here) = self.today();
        let (prefix, own) = (format!("{day}/"), self.store_id());
        for (org, bytes) in here {
            let key = format!("{prefix}{org}/{own}");
            let value = bytes.to_le_bytes().to_vec();
            aside.put(BYTES, &key, value, Some(SHARED)).await?;
        }
        let mut elsewhere: BTreeMap<OrgId, u64> = BTreeMap::new();
        let mut after = prefix.clone();
        loop {
            let page = aside.list(BYTES, &after, PAGE).await?;
            for entry in &page {
                let place = entry.key.strip_prefix(&prefix);
                let place = place.and_then(|place| place.split_once('/'));
                let bytes = entry.value.as_slice().try_into().map(u64::from_le_bytes);
                if let (Some((org, store)), Ok(bytes)) = (place, bytes)
                    && let Ok(org) = org.parse()
                    && store != own
                {
                    let sum = elsewhere.entry(org).or_default();
                    *sum = sum.saturating_add(bytes);
                }
            }
            match page.last() {
                Some(last) if page.len() >= PAGE as usize && last.key.starts_with(&prefix) => {
                    after.clone_from(&last.key);
                }
                _ => break,
            }
        }
        self.set_elsewhere(day, &elsewhere);
        Ok(())
    }

    /// Takes note of what each org printed elsewhere on a day.
    fn set_elsewhere(&self, day: u64, bytes: &BTreeMap<OrgId, u64>) {
        let mut counter = lock(&self.inner.counter);
        if counter.today == day {
            for (org, bytes) in bytes {
                counter.orgs.entry(*org).or_default().elsewhere = *bytes;
            }
        }
    }

    /// Takes no more lines, and seals what there is; reading goes on.
    pub async fn close(&self) {
        let Some(kept) = self.kept.get() else { return };
        drop(lock(&kept.pushes).take());
        let writing = lock(&kept.writing).take();
        if let Some(writing) = writing {
            // It only ends early if the runtime does.
            let _ = writing.await;
            kept.store.release();
        }
    }
}

impl Inner {
    fn publish(&self, counted: Counted) {
        let mut rings = lock(&self.rings);
        for (node, line) in counted.nodes.into_iter().zip(counted.lines) {
            rings.push(node, line.clone());
            // Nobody may be following.
            let _ = self.live.send(line);
        }
    }
}

/// Makes durable what waits, together, and says so.
async fn write(
    inner: Arc<Inner>,
    mut writer: Writer,
    mut pushes: mpsc::Receiver<Push>,
    clock: Arc<dyn Clock>,
) {
    loop {
        let mut waiting = Vec::new();
        match timeout(OLD, pushes.recv()).await {
            Ok(None) => break,
            Ok(Some(push)) => waiting.push(push),
            // Nobody prints; what there is may be old enough.
            Err(_) => {}
        }
        while waiting.len() < TOGETHER
            && let Ok(push) = pushes.try_recv()
        {
            waiting.push(push);
        }
        let now_ms = now_ms(&*clock);
        let mut counted = Counted::default();
        {
            let mut counter = lock(&inner.counter);
            counter.turn(now_ms);
            for push in &mut waiting {
                for (printer, entry) in std::mem::take(&mut push.entries) {
                    counter.count(&mut counted, (push.node, &printer), entry);
                }
            }
        }
        let work = spawn_blocking(move || {
            if writer.is_due() {
                writer.seal_or_say(now_ms);
            }
            let kept = writer.append(&counted.lines, now_ms);
            (writer, counted, kept)
        });
        // Without it those who wait hear that their lines are not kept.
        let Ok((back, mut counted, kept)) = work.await else {
            return;
        };
        writer = back;
        if kept.is_ok() {
            lock(&inner.counter).commit(&mut counted);
            inner.publish(counted);
        }
        for push in waiting {
            let again = |error: &io::Error| io::Error::new(error.kind(), error.to_string());
            // Its connection may be over.
            let _ = push.done.send(kept.as_ref().copied().map_err(again));
        }
    }
    let now_ms = now_ms(&*clock);
    let _ = spawn_blocking(move || writer.seal_or_say(now_ms)).await;
}

fn now_ms(clock: &dyn Clock) -> u64 {
    u64::try_from(clock.now().as_micros() / 1_000).unwrap_or(0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
