//! Places for streams: how many of an org or a token are open at once.
//!
//! A replica says beside the ledger how many it has open, and opens one more
//! only if that leaves all replicas together within the limit. It says so again
//! and again, so what a dead one had is free after [`LIFE`]. Out of reach of the
//! others each has its share. Never ends a stream that is open. Next:
//! `super::stream`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fluffy_base::Digest;
use fluffy_base::id::RequestId;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::backend::Backend;
use super::service::Shared;
use crate::aside::Claim;

/// How long places are kept for a replica that says nothing more.
const LIFE: Duration = Duration::from_secs(15);

/// How often a replica says what it has.
const AGAIN: Duration = Duration::from_secs(5);

/// The places of one replica; to be cloned freely.
#[derive(Debug, Clone)]
pub(super) struct Places(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Who this is among all that share; no other process ever was.
    holder: String,
    open: Mutex<HashMap<String, Open>>,
    /// What the others have to hear of.
    changed: Mutex<BTreeSet<String>>,
    wake: Notify,
    is_kept: AtomicBool,
    /// Held by whoever claims places of this share of all names.
    turns: [tokio::sync::Mutex<()>; 16],
}

/// What is open here under a name.
#[derive(Debug, Clone, Copy)]
struct Open {
    count: u64,
    limit: u64,
}

/// A stream that is open, until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    inner: Arc<Inner>,
    name: String,
}

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Inner {
            holder: RequestId::generate().to_string(),
            open: Mutex::default(),
            changed: Mutex::default(),
            wake: Notify::new(),
            is_kept: AtomicBool::new(false),
            turns: std::array::from_fn(|_| tokio::sync::Mutex::default()),
        }))
    }
}

#[cfg(test)]
impl Places {
    pub(super) fn holder(&self) -> String {
        self.0.holder.clone()
    }
}

/// A place for one more stream of this name, if there is one.
pub(super) async fn enter<B: Backend>(
    shared: &Arc<Shared<B>>,
    name: String,
    limit: u64,
) -> Option<Place> {
    let inner = &shared.places.0;
    if !inner.is_kept.swap(true, Ordering::SeqCst) {
        tokio::spawn(keep(Arc::downgrade(shared), Arc::clone(inner)));
    }
    let _turn = inner.turn(&name).lock().await;
    let open = inner.count(&name);
    if open >= limit {
        return None;
    }
    let got = inner.claim(&shared.backend, &name, (open + 1, limit)).await;
    let is_free = match got {
        Some(got) => got > open,
        None => open < limit / shared.backend.replicas().max(1),
    };
    if !is_free {
        return None;
    }
    let mut all = lock(&inner.open);
    let here = all.entry(name.clone()).or_insert(Open { count: 0, limit });
    here.count += 1;
    Some(Place {
        inner: Arc::clone(inner),
        name,
    })
}

/// Tells the others what is open here, as long as the service is there.
async fn keep<B: Backend>(shared: Weak<Shared<B>>, inner: Arc<Inner>) {
    let mut due = Instant::now() + AGAIN;
    loop {
        tokio::select! {
            () = inner.wake.notified() => {}
            () = sleep_until(due) => {}
        }
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let backend = &shared.backend;
        if due <= Instant::now() {
            due = Instant::now() + AGAIN;
            let is_idle = lock(&inner.open).is_empty();
            let kept = match is_idle {
                true => None,
                false => backend.keep_places(&inner.holder, LIFE).await,
            };
            if let Some(kept) = kept {
                inner.compare(&kept);
            }
        }
        let changed = std::mem::take(&mut *lock(&inner.changed));
        for name in changed {
            let _turn = inner.turn(&name).lock().await;
            let here = lock(&inner.open).get(&name).copied();
            let wanted = here.map_or((0, 0), |here| (here.count, here.limit));
            // What the others do not hear now, they hear with the next round,
            // or it lapses.
            inner.claim(backend, &name, wanted).await;
        }
    }
}

impl Inner {
    fn count(&self, name: &str) -> u64 {
        lock(&self.open).get(name).map_or(0, |here| here.count)
    }

    async fn claim<B: Backend>(
        &self,
        backend: &B,
        name: &str,
        (wanted, limit): (u64, u64),
    ) -> Option<u64> {
        let claim = Claim {
            wanted,
            limit,
            life: LIFE,
        };
        backend.claim_places(name, &self.holder, claim).await
    }

    /// Finds what the others know otherwise than it is: what lapsed while they
    /// were out of reach, and what was closed then.
    fn compare(&self, kept: &BTreeMap<String, u64>) {
        let open = lock(&self.open);
        let differs = |name: &&String| {
            let here = open.get(*name).map_or(0, |here| here.count);
            kept.get(*name).copied().unwrap_or(0) != here
        };
        let names = open.keys().chain(kept.keys());
        let found: BTreeSet<String> = names.filter(differs).cloned().collect();
        drop(open);
        lock(&self.changed).extend(found);
    }

    fn turn(&self, name: &str) -> &tokio::sync::Mutex<()> {
        let [first, ..] = *Digest::of(name.as_bytes()).as_bytes();
        let [only, ..] = &self.turns;
        self.turns.get(usize::from(first) % 16).unwrap_or(only)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = lock(&self.inner.open);
        if let Some(here) = open.get_mut(&self.name) {
            here.count -= 1;
            if here.count == 0 {
                open.remove(&self.name);
            }
        }
        drop(open);
        let name = std::mem::take(&mut self.name);
        lock(&self.inner.changed).insert(name);
        self.inner.wake.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
