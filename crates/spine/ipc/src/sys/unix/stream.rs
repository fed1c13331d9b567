//! The byte stream of a connection: a unix socket.
//!
//! Twin of `windows/stream.rs`. Must never read bytes on its own: the bytes
//! belong to `crate::transport`.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::sleep;

pub(crate) type Stream = UnixStream;
pub(crate) type ReadHalf = OwnedReadHalf;
pub(crate) type WriteHalf = OwnedWriteHalf;

/// How often a paused connection with unread bytes is looked at.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) fn split(stream: Stream) -> (ReadHalf, WriteHalf) {
    stream.into_split()
}

/// One attempt; a full backlog is [`io::ErrorKind::WouldBlock`].
pub(crate) async fn connect(path: &Path) -> io::Result<Stream> {
    UnixStream::connect(path).await
}

/// Writes what fits at once; a peer that does not read gets less.
pub(crate) fn write_now(stream: &Stream, bytes: &[u8]) {
    // Courtesy to a peer that is being refused; it must cost us nothing.
    let _ = stream.try_write(bytes);
}

/// Waits until the peer has closed its side, without reading.
pub(crate) async fn closed(half: &ReadHalf) {
    loop {
        match half.ready(Interest::READABLE).await {
            // Unread bytes keep the socket ready, so waiting alone would spin.
            Ok(ready) if !ready.is_read_closed() => sleep(LOOK).await,
            _ => return,
        }
    }
}

/// Whether accepting may work again in a moment.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
        Errno::CONNABORTED,
        Errno::INTR,
        Errno::AGAIN,
        Errno::PERM,
        Errno::PROTO,
    ]
    .iter()
    .any(|passing| error.raw_os_error() == Some(passing.raw_os_error()))
}
