//! Where peers connect: a socket or pipe that is ours and nobody else's.
//!
//! One listener for everybody, or one per sandbox so that its peers are known
//! by the way they came. Must never hand out a connection without an identity.
//! Next: `sys::listener` for how the place is guarded, `server` for its use.

use std::io;
use std::path::{Path, PathBuf};

use fluffy_base::id::SandboxId;

use crate::peer::{IdentifyPeerError, PeerIdentity};
use crate::sys::listener::RawListener;
use crate::sys::stream::Stream;

/// A place where peers connect.
///
/// On Unix a socket of mode 0600 in a directory of mode 0700, removed when the
/// listener is dropped; on Windows a pipe whose access list names our user.
#[derive(Debug)]
pub struct Listener {
    raw: RawListener,
    sandbox: Option<SandboxId>,
}

/// Why there is no listener. [`BindError::hint`] says what to do.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The path does not fit a socket address.
    #[error("the socket path `{}` has {length} bytes where {limit} are allowed", path.display())]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// How long it is.
        length: usize,
        /// How long it may be on this system.
        limit: usize,
    },
    /// The path is relative, or has no file name, or is not a pipe's name.
    #[error("`{}` is not the absolute path of a socket", path.display())]
    NotAbsolute {
        /// The path.
        path: PathBuf,
    },
    /// Someone else could replace what is in the directory.
    #[error("the directory `{}` is not safe for a socket: {why}", directory.display())]
    UnsafeDirectory {
        /// The directory.
        directory: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// What is at the path is not a socket of ours.
    #[error("`{}` exists and is not a socket of ours", path.display())]
    NotOurSocket {
        /// The path.
        path: PathBuf,
    },
    /// A live process serves the path.
    #[error("another process serves `{}`", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("cannot {action} `{}`", path.display())]
    System {
        /// What was tried.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Why a connection was not accepted.
#[derive(Debug)]
pub(crate) enum AcceptError {
    /// Nothing was accepted.
    Socket(io::Error),
    /// Somebody connected, but nobody knows who.
    Identity(Stream, IdentifyPeerError),
}

impl Listener {
    /// Listens for peers whose process is visible to us.
    ///
    /// A missing directory is created with mode 0700; its parent must exist.
    ///
    /// # Errors
    /// The place is not safe, is served by a live process, or cannot be made.
    pub fn bind(path: impl AsRef<Path>) -> Result<Self, BindError> {
        let raw = RawListener::bind(path.as_ref())?;
        Ok(Self { raw, sandbox: None })
    }

    /// Listens for the peers of one sandbox, visible or not.
    ///
    /// Whoever can reach the path *is* that sandbox: give it to no other.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn bind_for(path: impl AsRef<Path>, sandbox: SandboxId) -> Result<Self, BindError> {
        let raw = RawListener::bind(path.as_ref())?;
        Ok(Self {
            raw,
            sandbox: Some(sandbox),
        })
    }

    pub(crate) async fn accept(&mut self) -> Result<(Stream, PeerIdentity), AcceptError> {
        let stream = self.raw.accept().await.map_err(AcceptError::Socket)?;
        match PeerIdentity::identify(&stream, self.sandbox) {
            Ok(peer) => Ok((stream, peer)),
            Err(error) => Err(AcceptError::Identity(stream, error)),
        }
    }
}

impl BindError {
    /// How to fix it, as one sentence for a person.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::PathTooLong { .. } => {
                "choose a shorter directory, for example one under `$XDG_RUNTIME_DIR`"
            }
            Self::NotAbsolute { .. } => {
                "give an absolute path, or on Windows a name such as `\\\\.\\pipe\\fluffy`"
            }
            Self::UnsafeDirectory { .. } => {
                "use a real directory of your own with mode 0700 (`chmod 700`)"
            }
            Self::NotOurSocket { .. } => "move the file away, or choose another path",
            Self::InUse { .. } => "use the running process, or end it first",
            Self::System { .. } => "check that the path exists and that you may write there",
        }
    }
}
