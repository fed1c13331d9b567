//! The byte stream of a connection: a named pipe.
//!
//! Twin of `unix/stream.rs`. Must never read bytes on its own: the bytes
//! belong to `crate::transport`.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::windows::named_pipe::{ClientOptions, NamedPipeClient, NamedPipeServer};
use windows_sys::Win32::Foundation::ERROR_PIPE_BUSY;

pub(crate) type ReadHalf = tokio::io::ReadHalf<Stream>;
pub(crate) type WriteHalf = tokio::io::WriteHalf<Stream>;

/// Either end of a pipe.
#[derive(Debug)]
pub(crate) enum Stream {
    /// The end that was accepted.
    Server(NamedPipeServer),
    /// The end that connected.
    Client(NamedPipeClient),
}

pub(crate) fn split(stream: Stream) -> (ReadHalf, WriteHalf) {
    tokio::io::split(stream)
}

/// One attempt; no free instance is [`io::ErrorKind::WouldBlock`].
pub(crate) async fn connect(path: &Path) -> io::Result<Stream> {
    match ClientOptions::new().open(path) {
        Ok(client) => Ok(Stream::Client(client)),
        Err(error) if error.raw_os_error() == i32::try_from(ERROR_PIPE_BUSY).ok() => {
            Err(io::ErrorKind::WouldBlock.into())
        }
        Err(error) => Err(error),
    }
}

/// Writes what fits at once; a peer that does not read gets less.
pub(crate) fn write_now(stream: &Stream, bytes: &[u8]) {
    // Courtesy to a peer that is being refused; it must cost us nothing.
    let _ = match stream {
        Stream::Server(pipe) => pipe.try_write(bytes),
        Stream::Client(pipe) => pipe.try_write(bytes),
    };
}

/// Never: a pipe tells of its end only to those who read or write it.
pub(crate) async fn closed(_: &ReadHalf) {
    std::future::pending().await
}

/// Whether accepting may work again in a moment.
pub(crate) fn is_passing(_: &io::Error) -> bool {
    true
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = match self.get_mut() {
            Self::Server(pipe) => Pin::new(pipe).poll_read(context, buffer),
            Self::Client(pipe) => Pin::new(pipe).poll_read(context, buffer),
        };
        match read {
            // A pipe whose other end was closed is at its end, not broken.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                Poll::Ready(Ok(()))
            }
            other => other,
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Server(pipe) => Pin::new(pipe).poll_write(context, bytes),
            Self::Client(pipe) => Pin::new(pipe).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Server(pipe) => Pin::new(pipe).poll_flush(context),
            Self::Client(pipe) => Pin::new(pipe).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Server(pipe) => Pin::new(pipe).poll_shutdown(context),
            Self::Client(pipe) => Pin::new(pipe).poll_shutdown(context),
        }
    }
}
