//! Who a peer is, as the operating system says and not as the peer says.
//!
//! Taken once, at accept. No identity means no connection. Must never compare
//! processes by number alone: a number is used again. Next: `sys::peer`.

use std::io;
use std::sync::Arc;

use fluffy_base::id::SandboxId;

use crate::sys;

/// The identity of a peer, proven when it connected.
///
/// It is the identity of the process that *connected*. On Linux before 6.5 the
/// system keeps only the number from that moment, so a peer that exits at once
/// may be confused with whoever got its number before the accept.
#[derive(Debug, Clone)]
pub struct PeerIdentity {
    /// The process; none if it lives in another pid namespace.
    ///
    /// Such a peer is only accepted on the socket of its sandbox, and then
    /// [`PeerIdentity::sandbox`] says who it is.
    pub process: Option<PeerProcess>,
    /// The user; none on Windows, where the pipe admits our user alone.
    pub uid: Option<u32>,
    /// The group; none on Windows.
    pub gid: Option<u32>,
    /// The sandbox whose own socket the peer came through.
    pub sandbox: Option<SandboxId>,
    handle: Arc<sys::peer::ProcessHandle>,
}

/// One process for ever, where a number alone is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PeerProcess {
    /// The number in our pid namespace.
    pub pid: u32,
    /// What tells it from earlier and later owners of the number.
    ///
    /// Clock ticks since boot on Linux, the version of the number on macOS,
    /// the creation time on Windows: compare it, do not read it as a time.
    pub start_time: u64,
    /// What tells it apart even within one tick of that clock.
    ///
    /// The inode of its pidfd, unique until the next boot; none before Linux
    /// 6.9 and elsewhere, where `start_time` has to do.
    pub serial: Option<u64>,
}

/// Why the operating system could not say who a peer is.
#[derive(Debug, thiserror::Error)]
pub enum IdentifyPeerError {
    /// A system call failed.
    #[error("cannot {action} the peer")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The process is in another pid namespace and came to a shared socket.
    #[error("the peer is in another pid namespace and not on the socket of its sandbox")]
    Invisible,
    /// The process ended before it could be identified.
    #[error("the peer ended before it could be identified")]
    Gone,
}

/// What the operating system says about a peer.
#[derive(Debug)]
pub(crate) struct RawPeer {
    pub(crate) process: Option<PeerProcess>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) handle: sys::peer::ProcessHandle,
}

impl PeerIdentity {
    /// Whether the very process that connected is still running.
    ///
    /// A later process with the same number never makes this true again.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.handle.is_running()
    }

    /// Whether this is the process that something was earlier bound to.
    ///
    /// True only while it runs, so that nothing passes to a later owner of its
    /// number, and never for a peer whose process is not visible.
    #[must_use]
    pub fn is(&self, bound: PeerProcess) -> bool {
        self.process == Some(bound) && self.is_running()
    }

    pub(crate) fn identify(
        stream: &sys::stream::Stream,
        sandbox: Option<SandboxId>,
    ) -> Result<Self, IdentifyPeerError> {
        let raw = sys::peer::identify(stream)?;
        if raw.process.is_none() && sandbox.is_none() {
            return Err(IdentifyPeerError::Invisible);
        }
        Ok(Self {
            process: raw.process,
            uid: raw.uid,
            gid: raw.gid,
            sandbox,
            handle: Arc::new(raw.handle),
        })
    }
}
