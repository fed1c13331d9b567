//! Frames on their way out.
//!
//! Written by whoever has one, at once, while the pipe has room: a call does
//! not wait until another task is scheduled. What finds no room is written by
//! [`Outbox::drive`], in order.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::net::unix::pipe;
use tokio::sync::Notify;

/// Frames on their way out of one pipe.
#[derive(Debug)]
pub(super) struct Outbox {
    pipe: pipe::Sender,
    rest: Mutex<Rest>,
    more: Notify,
}

/// What found no room: whole frames, the first one written up to `done`.
#[derive(Debug, Default)]
struct Rest {
    frames: VecDeque<Vec<u8>>,
    done: usize,
    /// Nobody reads any more.
    closed: bool,
}

impl Outbox {
    pub(super) fn new(pipe: pipe::Sender) -> Self {
        Self {
            pipe,
            rest: Mutex::default(),
            more: Notify::new(),
        }
    }

    /// Sends a frame after the ones before it. A reader that is gone is seen
    /// elsewhere, so this never fails.
    pub(super) fn send(&self, frame: Vec<u8>) {
        let mut rest = self.lock();
        let waiting = !rest.frames.is_empty();
        if rest.closed {
            return;
        }
        rest.frames.push_back(frame);
        if !waiting && !self.write(&mut rest) {
            self.more.notify_one();
        }
    }

    /// Writes what found no room, until nobody reads any more.
    pub(super) async fn drive(&self) {
        loop {
            self.more.notified().await;
            while self.pipe.writable().await.is_ok() && !self.write(&mut self.lock()) {}
            if self.lock().closed {
                return;
            }
        }
    }

    /// Writes as much as there is room for; whether nothing is left.
    fn write(&self, rest: &mut Rest) -> bool {
        while let Some(frame) = rest.frames.front() {
            let bytes = frame.get(rest.done..).unwrap_or_default();
            match self.pipe.try_write(bytes) {
                Ok(written) if written == bytes.len() => {
                    rest.frames.pop_front();
                    rest.done = 0;
                }
                Ok(written) => rest.done += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => {
                    rest.frames.clear();
                    rest.closed = true;
                }
            }
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Rest> {
        // Each change leaves it whole.
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

    use std::sync::Arc;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn frames_come_whole_and_in_order_however_slow_the_reader_is() {
        let (sender, mut receiver) = pipe::pipe().unwrap();
        let outbox = Arc::new(Outbox::new(sender));
        let driving = tokio::spawn({
            let outbox = Arc::clone(&outbox);
            async move { outbox.drive().await }
        });
        // More than any pipe holds, in pieces smaller and larger than it.
        let frame = |index: usize| vec![u8::try_from(index % 251).unwrap(); 1 + index * 997];
        let mut wanted = Vec::new();
        for index in 0..200 {
            wanted.extend(frame(index));
            outbox.send(frame(index));
        }
        assert!(!outbox.lock().frames.is_empty(), "all found room");
        let mut found = vec![0; wanted.len()];
        receiver.read_exact(&mut found).await.unwrap();
        assert!(found == wanted);
        // And at once when there is room again.
        outbox.send(b"last".to_vec());
        assert!(outbox.lock().frames.is_empty());
        let mut last = [0; 4];
        receiver.read_exact(&mut last).await.unwrap();
        assert_eq!(&last, b"last");
        drop(receiver);
        while !outbox.lock().closed {
            outbox.send(frame(100));
            tokio::task::yield_now().await;
        }
        driving.abort();
    }
}
