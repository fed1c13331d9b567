//! What a program writes to its two output streams, kept up to a limit.
//!
//! Both streams share one limit. The write that passes it is kept as far as it
//! fits and ends the call; nothing is ever dropped silently. The host's own
//! standard streams are not touched.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use fluffy_base::ByteSize;
use tokio::io::AsyncWrite;
use wasmtime_wasi::async_trait;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};
use wasmtime_wasi_io::bytes::Bytes;

use crate::stop::Stop;

/// How much a program may hand over at once.
const CHUNK: usize = 64 << 10;

/// Keeps what a program writes.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    kept: Arc<Mutex<Kept>>,
}

/// One of the two streams.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    kept: Arc<Mutex<Kept>>,
    which: Which,
}

#[derive(Debug, Clone, Copy)]
enum Which {
    Stdout,
    Stderr,
}

#[derive(Debug)]
struct Kept {
    limit: ByteSize,
    left: usize,
    exceeded: bool,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Output {
    pub(crate) fn new(limit: ByteSize) -> Self {
        let kept = Kept {
            limit,
            left: usize::try_from(limit.0).unwrap_or(usize::MAX),
            exceeded: false,
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        Self {
            kept: Arc::new(Mutex::new(kept)),
        }
    }

    pub(crate) fn stdout(&self) -> Stream {
        self.stream(Which::Stdout)
    }

    pub(crate) fn stderr(&self) -> Stream {
        self.stream(Which::Stderr)
    }

    fn stream(&self, which: Which) -> Stream {
        Stream {
            kept: Arc::clone(&self.kept),
            which,
        }
    }

    /// The limit's own reason, if it was passed.
    pub(crate) fn exceeded(&self) -> Option<Stop> {
        let kept = lock(&self.kept);
        kept.exceeded.then_some(Stop::Output { limit: kept.limit })
    }

    /// Standard output and standard error; what is written later is lost.
    pub(crate) fn take(&self) -> (Vec<u8>, Vec<u8>) {
        let mut kept = lock(&self.kept);
        kept.left = 0;
        (
            std::mem::take(&mut kept.stdout),
            std::mem::take(&mut kept.stderr),
        )
    }
}

impl Output {
    /// What was written so far; the next call may write as much again.
    pub(crate) fn renew(&self, limit: ByteSize) -> (Vec<u8>, Vec<u8>) {
        let mut kept = lock(&self.kept);
        kept.limit = limit;
        kept.left = usize::try_from(limit.0).unwrap_or(usize::MAX);
        (
            std::mem::take(&mut kept.stdout),
            std::mem::take(&mut kept.stderr),
        )
    }
}

impl Stream {
    fn keep(&self, bytes: &[u8]) -> Result<(), Stop> {
        let mut kept = lock(&self.kept);
        let fits = bytes.get(..kept.left).unwrap_or(bytes);
        kept.left = kept.left.saturating_sub(fits.len());
        match self.which {
            Which::Stdout => kept.stdout.extend_from_slice(fits),
            Which::Stderr => kept.stderr.extend_from_slice(fits),
        }
        if fits.len() == bytes.len() {
            return Ok(());
        }
        kept.exceeded = true;
        Err(Stop::Output { limit: kept.limit })
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    // Each change is complete before the lock is given back.
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OutputStream for Stream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.keep(&bytes)
            .map_err(|stop| StreamError::Trap(stop.into()))
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(CHUNK)
    }
}

#[async_trait]
impl Pollable for Stream {
    async fn ready(&mut self) {}
}

impl IsTerminal for Stream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Stream {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = self.keep(bytes).map(|()| bytes.len());
        Poll::Ready(written.map_err(std::io::Error::other))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_streams_share_the_limit_and_keep_what_fits() {
        let output = Output::new(ByteSize(8));
        let (mut out, mut err) = (output.stdout(), output.stderr());
        assert!(out.write(Bytes::from_static(b"hello")).is_ok());
        assert_eq!(output.exceeded(), None);
        assert!(err.write(Bytes::from_static(b"world")).is_err());
        let limit = ByteSize(8);
        assert_eq!(output.exceeded(), Some(Stop::Output { limit }));
        assert_eq!(output.take(), (b"hello".to_vec(), b"wor".to_vec()));
    }

    #[test]
    fn exactly_the_limit_is_fine() {
        let output = Output::new(ByteSize(5));
        assert!(output.stdout().write(Bytes::from_static(b"hello")).is_ok());
        assert!(output.stdout().write(Bytes::new()).is_ok());
        assert_eq!(output.exceeded(), None);
    }
}
