//! Starts again what failed, later each time: tasks of the agent, and itself.
//!
//! Never gives up and never hides it: every start is counted and logged. What
//! runs in instances goes on meanwhile; who starts again finds it.

use std::sync::Arc;
use std::time::Duration;

use fluffy_contract::BoxFuture;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::agent::{Handle, RunError};
use crate::metrics::Metrics;
use crate::session::Task;

/// The first pause and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// So many failures in this time are too many.
const MOST: (usize, Duration) = (5, Duration::from_secs(300));

/// What is held against something that fails.
#[derive(Debug, Default)]
pub(crate) struct Failures(Vec<Instant>);

impl Failures {
    /// Counts one more; how long to wait until the next start.
    pub(crate) fn pause(&mut self) -> Duration {
        let now = Instant::now();
        self.0.retain(|then| now.duration_since(*then) < MOST.1);
        let before = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0.push(now);
        let doubled = 2_u32.saturating_pow(before.min(16));
        let pause = PAUSE.0.saturating_mul(doubled).min(PAUSE.1);
        let mut random = [0];
        // Up to a quarter more, so that what fell together rises apart.
        let more = match getrandom::fill(&mut random) {
            Ok(()) => f64::from(random[0]) / 255.0 * 0.25,
            Err(_) => 0.25,
        };
        pause.mul_f64(1.0 + more)
    }

    /// Whether it fails too often.
    pub(crate) fn are_too_many(&self) -> bool {
        self.0.len() >= MOST.0
    }

    /// Holds nothing against it any more.
    pub(crate) fn forgive(&mut self) {
        self.0.clear();
    }
}

/// Runs something that never ends by itself, and again whenever it does.
pub(crate) fn keep_up<F>(
    what: &'static str,
    metrics: Arc<Metrics>,
    mut make: impl FnMut() -> F + Send + 'static,
) -> Task
where
    F: Future<Output = ()> + Send + 'static,
{
    Task::of(async move {
        let mut failures = Failures::default();
        loop {
            // Ends with whoever supervises it.
            let mut task = JoinSet::new();
            task.spawn(make());
            let ended = task.join_next().await;
            let pause = failures.pause();
            metrics.count("actor_restarts_total", what);
            let panicked = ended.is_some_and(|ended| ended.is_err());
            tracing::error!(what, panicked, "a task of the agent ended");
            sleep(pause).await;
        }
    })
}

/// What runs an agent, and the way to it.
pub type Running = (BoxFuture<'static, ()>, Handle);

/// Runs an agent until `halt` says so or is dropped, and then ends it with all
/// that it runs. One that fails is opened again, and adopts what runs.
pub async fn keep_running(
    first: Running,
    mut open: impl FnMut() -> BoxFuture<'static, Result<Running, RunError>> + Send,
    mut halt: oneshot::Receiver<()>,
) {
    let mut failures = Failures::default();
    let mut current = Some(first);
    loop {
        let (running, handle) = match current.take() {
            Some(current) => current,
            None => match open().await {
                Ok(opened) => opened,
                Err(error) => {
                    let pause = failures.pause();
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::error!(%error, cause, "the node's agent cannot be started again");
                    tokio::select! {
                        () = sleep(pause) => continue,
                        // Nothing can be ended by nobody; the next start finds it.
                        _ = &mut halt => return,
                    }
                }
            },
        };
        let mut task = JoinSet::new();
        task.spawn(running);
        tokio::select! {
            ended = task.join_next() => {
                let panicked = ended.is_some_and(|ended| ended.is_err());
                tracing::error!(panicked, "the node's agent ended; it is started again");
            }
            _ = &mut halt => {
                handle.halt().await;
                task.join_next().await;
                return;
            }
        }
        let pause = failures.pause();
        tokio::select! {
            () = sleep(pause) => {}
            // Somebody has to end what runs: one more is opened for that.
            _ = &mut halt => {
                if let Ok((running, handle)) = open().await {
                    let mut task = JoinSet::new();
                    task.spawn(running);
                    handle.halt().await;
                    task.join_next().await;
                }
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_started_again_later_each_time() {
        let times = Arc::new(AtomicUsize::new(0));
        let (done, mut is_done) = tokio::sync::mpsc::channel(1);
        let metrics = Arc::new(Metrics::default());
        let counted = Arc::clone(&times);
        let _task = keep_up("test", Arc::clone(&metrics), move || {
            let (time, done) = (counted.fetch_add(1, Ordering::SeqCst), done.clone());
            async move {
                match time {
                    0 => panic!("once"),
                    1 => {}
                    _ => {
                        let _ = done.send(()).await;
                        std::future::pending().await
                    }
                }
            }
        });
        is_done.recv().await.unwrap();
        assert_eq!(times.load(Ordering::SeqCst), 3);
        let figures = metrics.figures();
        let restarts = figures.iter().find(|it| it.name == "actor_restarts_total");
        assert_eq!(restarts.unwrap().values, [("test", 2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_to_their_bound_with_a_quarter_of_chance() {
        let mut failures = Failures::default();
        for expected in [100, 200, 400, 800, 1_600] {
            assert!(!failures.are_too_many());
            let pause = u64::try_from(failures.pause().as_millis()).unwrap();
            assert!(
                (expected..=expected + expected / 4 + 1).contains(&pause),
                "{pause} for {expected}"
            );
        }
        assert!(failures.are_too_many());
        for _ in 0..20 {
            assert!(failures.pause() <= PAUSE.1.mul_f64(1.26));
        }
        failures.forgive();
        assert!(!failures.are_too_many());
        for _ in 0..5 {
            failures.pause();
        }
        tokio::time::advance(MOST.1).await;
        failures.pause();
        assert!(!failures.are_too_many(), "those of before are forgiven");
    }
}
