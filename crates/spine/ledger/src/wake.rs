//! Waiting for news, from a task or from a plain thread.
//!
//! A wake-up is only a hint: whoever wakes looks for itself, so a lost one
//! costs [`Wake::poll`] and nothing else. Used by `subscribe` and `projection`.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use futures_util::future::select_all;
use tokio::sync::watch;

use crate::engine::Engine;

/// How often to look when nobody tells of other processes' commits.
const UNTOLD: Duration = Duration::from_millis(250);
/// How often to look when the engine listens for them.
const TOLD: Duration = Duration::from_secs(2);

/// Everything that can tell of something new.
#[derive(Debug, Clone)]
pub(crate) struct Wake {
    sources: Vec<watch::Receiver<u64>>,
    poll: Duration,
}

impl Wake {
    /// Wakes on commits of this process and, as far as they are heard, of
    /// others.
    pub(crate) fn new(commits: watch::Receiver<u64>, engine: &Engine) -> Self {
        let heard = engine.heard();
        let poll = if heard.is_some() { TOLD } else { UNTOLD };
        let sources = std::iter::once(commits).chain(heard).collect();
        Self { sources, poll }
    }

    /// Wakes when this one ticks, and now and then.
    pub(crate) fn only(source: watch::Receiver<u64>) -> Self {
        Self {
            sources: vec![source],
            poll: TOLD,
        }
    }

    /// Also wakes when this one ticks.
    pub(crate) fn also(mut self, source: watch::Receiver<u64>) -> Self {
        self.sources.push(source);
        self
    }

    /// Waits until there may be something new.
    pub(crate) async fn wait(&mut self) {
        let poll = self.poll;
        // Running out of time is one of the two ways to wake.
        let _ = tokio::time::timeout(poll, self.ticked()).await;
    }

    /// As [`Wake::wait`], on a thread, for at most `limit`.
    pub(crate) fn wait_blocking(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit.min(self.poll);
        let _ = block_until(self.ticked(), deadline);
    }

    /// Done when any source ticks; never when all have closed.
    async fn ticked(&mut self) {
        while !self.sources.is_empty() {
            let changes = self
                .sources
                .iter_mut()
                .map(|source| Box::pin(source.changed()));
            let (changed, index, others) = select_all(changes).await;
            drop(others);
            if changed.is_ok() {
                return;
            }
            // Closed, and its last tick was seen.
            self.sources.swap_remove(index);
        }
        std::future::pending().await
    }
}

/// Runs a future that needs no runtime on this thread; none if time runs out.
pub(crate) fn block_until<F: Future>(future: F, deadline: Instant) -> Option<F::Output> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        // An unpark between the poll and here makes this return at once.
        thread::park_timeout(deadline.checked_duration_since(Instant::now())?);
    }
}

struct Unpark(Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn wake(sources: Vec<watch::Receiver<u64>>) -> Wake {
        Wake {
            sources,
            poll: LONG,
        }
    }

    #[test]
    fn a_tick_before_the_wait_is_not_lost() {
        let (sender, receiver) = watch::channel(0);
        let mut wake = wake(vec![receiver]);
        sender.send_replace(1);
        let started = Instant::now();
        wake.wait_blocking(LONG);
        assert!(started.elapsed() < LONG);
    }

    #[test]
    fn the_last_tick_before_closing_is_not_lost() {
        let (sender, receiver) = watch::channel(0);
        let (_quiet, other) = watch::channel(0);
        let (closed, gone) = watch::channel(0);
        let mut wake = wake(vec![gone, other]).also(receiver);
        sender.send_replace(1);
        drop((sender, closed));
        let started = Instant::now();
        wake.wait_blocking(LONG);
        assert!(started.elapsed() < LONG);
    }

    #[test]
    fn a_tick_of_another_thread_wakes() {
        let (sender, receiver) = watch::channel(0);
        let (_quiet, other) = watch::channel(0);
        let mut wake = wake(vec![other]).also(receiver);
        let started = Instant::now();
        thread::scope(|scope| {
            scope.spawn(move || sender.send_replace(1));
            wake.wait_blocking(LONG);
        });
        assert!(started.elapsed() < LONG);
    }

    #[tokio::test]
    async fn closed_sources_leave_only_the_clock() {
        let (sender, receiver) = watch::channel(0);
        drop(sender);
        let poll = Duration::from_millis(20);
        let mut wake = Wake {
            sources: vec![receiver],
            poll,
        };
        let started = Instant::now();
        wake.wait().await;
        wake.wait_blocking(LONG);
        assert!(started.elapsed() >= 2 * poll);
    }
}
