//! Rate limits: how many calls an org, a caller or an address may make.
//!
//! Replicas draw small chunks from buckets that they share, so that together
//! they never allow more than the limit; out of reach of those, each allows
//! its share. Counts by fixed windows. Never forgets a bucket in its window,
//! and keeps a bounded number of them: however many strangers come, those who
//! proved who they are keep theirs. Next: `super::service`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fluffy_api::operation::Bucket;
use fluffy_base::{Digest, Timestamp};

use super::backend::Backend;
use super::service::Peer;
use crate::aside::Draw;
use crate::source;

/// The most buckets that are kept of either kind of payers; old windows go
/// first.
const MOST: usize = 20_000;

/// The part of a window that is drawn at once: a twentieth.
const CHUNKS: u64 = 20;

/// After how many seconds somebody tries again for whom there was no place.
const CROWDED: u64 = 10;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// How many calls there may be in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimits {
    /// Reads of an org in a minute.
    pub reads: u64,
    /// Writes of an org in a minute.
    pub writes: u64,
    /// Logins, and failures to prove who calls, of an address in a minute.
    pub logins: u64,
    /// Exec sessions of an org in an hour.
    pub execs: u64,
    /// Streams of changes of an org at once, on all replicas.
    pub watches: u64,
    /// Streams of logs of an org at once, on all replicas.
    pub log_streams: u64,
    /// And of one token.
    pub log_streams_of_token: u64,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self {
            reads: 1000,
            writes: 100,
            logins: 10,
            execs: 100,
            watches: 50,
            log_streams: 20,
            log_streams_of_token: 5,
        }
    }
}

impl RateLimits {
    /// Those of a token, which has no more than the org.
    pub(super) fn lowered(self, limit: u64) -> Self {
        Self {
            reads: self.reads.min(limit),
            writes: self.writes.min(limit),
            ..self
        }
    }

    fn of(self, bucket: Bucket) -> (&'static str, u64, Duration) {
        match bucket {
            Bucket::Auth => ("auth", self.logins, MINUTE),
            Bucket::Read => ("read", self.reads, MINUTE),
            Bucket::Write => ("write", self.writes, MINUTE),
            Bucket::Exec => ("exec", self.execs, HOUR),
        }
    }
}

/// What is left of the bucket that a call was counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) limit: u64,
    pub(super) remaining: u64,
    /// When it is full again, in seconds since 1970.
    pub(super) reset: u64,
    /// How many seconds that is from now.
    pub(super) after: u64,
    pub(super) allowed: bool,
}

impl Left {
    /// Of a call that costs nobody anything.
    pub(super) const fn free() -> Self {
        Self {
            limit: 0,
            remaining: 0,
            reset: 0,
            after: 0,
            allowed: true,
        }
    }
}

impl Left {
    /// Of streams that are all open; nobody knows when one of them ends.
    pub(super) fn crowded(limit: u64, now: Timestamp) -> Self {
        Self {
            limit,
            remaining: 0,
            reset: seconds_of(now) + CROWDED,
            after: CROWDED,
            allowed: false,
        }
    }
}

/// Who pays for a call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Payer<'a> {
    /// An org, a principal or a token: somebody proved to be it.
    Known(&'a str),
    /// Whoever is at the other end.
    Stranger(Peer),
}

#[derive(Debug, Default)]
pub(super) struct Rates {
    known: Buckets,
    strangers: Buckets,
}

/// The buckets of one kind of payers.
#[derive(Debug, Default)]
struct Buckets {
    all: Mutex<HashMap<String, Local>>,
    /// Held by whoever draws from a bucket of this share of all.
    turns: [tokio::sync::Mutex<()>; 16],
}

/// What this replica has drawn from a bucket in a window.
#[derive(Debug, Clone, Copy, Default)]
struct Local {
    window: u64,
    /// When that is over, in seconds since 1970.
    ends: u64,
    drawn: u64,
    used: u64,
    /// Whether the shared bucket had nothing left.
    is_dry: bool,
}

/// A window: its number among those of its length, and when it is over.
#[derive(Debug, Clone, Copy)]
struct Window {
    number: u64,
    ends: u64,
}

impl Local {
    fn take(&mut self) -> bool {
        let free = self.used < self.drawn;
        self.used += u64::from(free);
        free
    }
}

impl Rates {
    /// Counts one call by a bucket.
    pub(super) async fn count<B: Backend>(
        &self,
        backend: &B,
        limits: RateLimits,
        (bucket, payer): (Bucket, Payer<'_>),
    ) -> Left {
        let (name, limit, length) = limits.of(bucket);
        let seconds = length.as_secs().max(1);
        let now = seconds_of(backend.now());
        let (buckets, payer, others) = match payer {
            Payer::Known(payer) => (&self.known, payer.to_owned(), "others"),
            Payer::Stranger(peer) => (&self.strangers, counted(peer), "strangers"),
        };
        let key = buckets.name(name, (&payer, others), now);
        let number = now / seconds;
        let ends = (number + 1) * seconds;
        let window = Window { number, ends };
        let take = |local: &mut Local| {
            let allowed = local.take();
            (*local, allowed)
        };
        let mut local = buckets.with(&key, window, take);
        let mut turn = None;
        if !local.1 && !local.0.is_dry {
            // One draws for all who wait: a crowd that drew a chunk each would
            // leave nothing to other replicas.
            turn = Some(buckets.turn(&key).lock().await);
            local = buckets.with(&key, window, take);
        }
        if !local.1 && !local.0.is_dry {
            let wanted = (limit / CHUNKS).max(1);
            let draw = Draw {
                wanted,
                limit,
                window: length,
            };
            let got = backend.draw(&key, draw).await;
            local = buckets.with(&key, window, |local| {
                let share = limit / backend.replicas().max(1);
                let got = got.unwrap_or_else(|| wanted.min(share.saturating_sub(local.drawn)));
                local.drawn += got;
                local.is_dry = got == 0;
                take(local)
            });
        }
        drop(turn);
        let (local, allowed) = local;
        let remaining = match local.is_dry {
            true => local.drawn.saturating_sub(local.used),
            false => limit.saturating_sub(local.used),
        };
        Left {
            limit,
            remaining,
            reset: ends,
            after: ends.saturating_sub(now).max(1),
            allowed,
        }
    }
}

impl Buckets {
    /// Under which name a payer is counted. Those for whom there is no room
    /// share one bucket: nobody gets more by coming under many names.
    fn name(&self, bucket: &str, (payer, others): (&str, &str), now: u64) -> String {
        let key = format!("{bucket}:{payer}");
        let mut buckets = self.lock();
        if buckets.len() >= MOST && !buckets.contains_key(&key) {
            buckets.retain(|_, local| local.ends > now);
            if buckets.len() >= MOST {
                return format!("{bucket}:{others}");
            }
        }
        key
    }

    fn with<R>(&self, key: &str, window: Window, act: impl FnOnce(&mut Local) -> R) -> R {
        let mut buckets = self.lock();
        let local = buckets.entry(key.to_owned()).or_default();
        if local.window != window.number {
            *local = Local {
                window: window.number,
                ends: window.ends,
                ..Local::default()
            };
        }
        act(local)
    }

    fn turn(&self, key: &str) -> &tokio::sync::Mutex<()> {
        let [first, ..] = *Digest::of(key.as_bytes()).as_bytes();
        let [only, ..] = &self.turns;
        self.turns.get(usize::from(first) % 16).unwrap_or(only)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Local>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a peer is counted as.
fn counted(peer: Peer) -> String {
    match peer {
        Peer::Address(address) => source::counted(address).to_string(),
        Peer::Socket(_) => peer.to_string(),
    }
}

fn seconds_of(moment: Timestamp) -> u64 {
    u64::try_from(moment.as_micros() / 1_000_000).unwrap_or(0)
}
