//! Who leads a loop: a lease by the database's clock, a term by the ledger.
//!
//! The lease beside the ledger decides who tries; it may be wrong about a
//! process that was stopped or cut off. What counts is the term: its number is
//! in the ledger, every job of the loop carries it, and a job of an earlier
//! term is refused where it is decided. Never trusts this machine's clock for
//! more than giving up early.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use crate::aside::Aside;

/// How long a lease lasts without being renewed.
pub const LIFE: Duration = Duration::from_secs(8);
/// How often it is renewed.
pub const RENEWAL: Duration = Duration::from_secs(2);
/// How often others look whether it has ended.
pub const RETRY: Duration = Duration::from_secs(1);

// A dead or stopped holder is replaced within ten seconds.
const _: () = assert!(LIFE.as_millis() + RETRY.as_millis() < 10_000);
// One renewal may be late, and the next one lost.
const _: () = assert!(3 * RENEWAL.as_millis() < LIFE.as_millis());

/// The leases of one replica.
#[derive(Debug, Clone)]
pub struct Leases {
    aside: Aside,
    holder: String,
    timing: Timing,
}

/// The time during which one replica leads a loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// The name of the lease.
    pub lease: String,
    /// Its number, as the ledger has it.
    pub epoch: u64,
}

/// How long leases last and how often somebody looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How long a lease lasts without being renewed.
    pub life: Duration,
    /// How often it is renewed.
    pub renewal: Duration,
    /// How often others look whether it has ended.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            life: LIFE,
            renewal: RENEWAL,
            retry: RETRY,
        }
    }
}

impl Leases {
    /// Those of a replica, whose name no other process ever had.
    #[must_use]
    pub fn new(aside: Aside, holder: impl Into<String>) -> Self {
        Self {
            aside,
            holder: holder.into(),
            timing: Timing::default(),
        }
    }

    /// The same with other times.
    #[must_use]
    pub fn with_timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// The name under which leases are held.
    #[must_use]
    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// Does `work` whenever this replica leads, until this future is dropped.
    ///
    /// `begin` records the next term in the ledger and gives its number, or
    /// none if that failed. `work` is dropped when the lease is lost, so it
    /// does nothing that must not be left half done.
    pub async fn lead<B, BF, W, WF>(&self, lease: &str, begin: B, work: W)
    where
        B: Fn() -> BF + Send + Sync,
        BF: Future<Output = Option<u64>> + Send,
        W: Fn(Term) -> WF + Send + Sync,
        WF: Future<Output = ()> + Send,
    {
        loop {
            let asked = Instant::now();
            let life = self.timing.life;
            match self.aside.take(lease, &self.holder, life).await {
                Ok(true) => {
                    let term = self.hold(lease, asked, async {
                        let Some(epoch) = begin().await else { return };
                        tracing::info!(lease, epoch, "this replica leads");
                        let lease = lease.to_owned();
                        work(Term { lease, epoch }).await;
                    });
                    term.await;
                    // If this is lost too, the lease ends by itself.
                    let _ = self.aside.give_up(lease, &self.holder).await;
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(
                    lease,
                    error = &error as &dyn std::error::Error,
                    "whether this replica leads can't be found out"
                ),
            }
            sleep(self.timing.retry).await;
        }
    }

    /// Runs `work` until it ends or the lease does.
    async fn hold(&self, lease: &str, taken: Instant, work: impl Future<Output = ()>) {
        tokio::select! {
            () = work => {}
            () = self.renew(lease, taken) => {
                tracing::warn!(lease, "this replica leads no longer");
            }
        }
    }

    /// Renews the lease until it is lost, or may be.
    async fn renew(&self, lease: &str, taken: Instant) {
        let Timing { life, renewal, .. } = self.timing;
        let mut renewed = taken;
        loop {
            sleep(renewal).await;
            let asked = Instant::now();
            let left = life.saturating_sub(asked.duration_since(renewed));
            let answer = timeout(left, self.aside.renew(lease, &self.holder, life)).await;
            match answer {
                Ok(Ok(true)) => renewed = asked,
                Ok(Ok(false)) | Err(_) => return,
                Ok(Err(_)) if renewed.elapsed() >= life => return,
                Ok(Err(error)) => tracing::warn!(
                    lease,
                    error = &error as &dyn std::error::Error,
                    "a lease was not renewed"
                ),
            }
        }
    }
}
