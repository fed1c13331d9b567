//! The calls of one connection that are not answered to their end.
//!
//! A connection of HTTP/2 has many, and none for as long as nobody asks. Counts
//! them, and says when there was none for too long. Next: `super::listen`.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::watch;
use tokio::time::timeout;

use super::body::AnswerBody;

/// Counts the calls of one connection; to be cloned freely.
#[derive(Debug, Clone, Default)]
pub(super) struct Running(watch::Sender<usize>);

/// One call, until this is dropped.
#[derive(Debug)]
pub(super) struct Turn(watch::Sender<usize>);

/// The body of an answer whose call runs until all of it was taken.
#[derive(Debug)]
pub(super) struct Sending {
    body: AnswerBody,
    _turn: Turn,
}

impl Running {
    /// Counts one call.
    pub(super) fn begin(&self) -> Turn {
        self.0.send_modify(|count| *count += 1);
        Turn(self.0.clone())
    }

    /// How many there are, as that changes.
    pub(super) fn watch(&self) -> watch::Receiver<usize> {
        self.0.subscribe()
    }
}

impl Turn {
    /// Goes on until the answer was sent.
    pub(super) fn until_sent(self, body: AnswerBody) -> Sending {
        Sending { body, _turn: self }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Body for Sending {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// When no call ran for so long.
pub(super) async fn idle(mut running: watch::Receiver<usize>, limit: Duration) {
    loop {
        let is_idle = *running.borrow_and_update() == 0;
        // Also a call that was over before this looked is a change.
        let changed = match is_idle {
            true => timeout(limit, running.changed()).await,
            false => Ok(running.changed().await),
        };
        if !matches!(changed, Ok(Ok(()))) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(180);

    #[tokio::test(start_paused = true)]
    async fn a_connection_idles_from_the_end_of_its_last_call() {
        let running = Running::default();
        let begun = tokio::time::Instant::now();
        let idle = tokio::spawn(idle(running.watch(), LIMIT));
        let short = Duration::from_secs(100);
        for _ in 0..3 {
            tokio::time::sleep(short).await;
            // Over before anybody looked.
            drop(running.begin());
        }
        let (one, other) = (running.begin(), running.begin());
        tokio::time::sleep(LIMIT * 2).await;
        drop(one);
        tokio::time::sleep(LIMIT * 2).await;
        assert!(!idle.is_finished());
        drop(other.until_sent(AnswerBody::Whole(None)));
        idle.await.unwrap();
        assert_eq!(begun.elapsed(), short * 3 + LIMIT * 5);
    }
}
