//! Who is at the other end of a unix socket, as macOS knows it.
//!
//! The audit token is the proof: it holds the process number together with a
//! version that changes when the number is used again. Twin of
//! `linux/peer.rs`. Must never identify by the number alone.
#![expect(
    unsafe_code,
    reason = "no safe wrapper offers LOCAL_PEERTOKEN; the two calls are below"
)]

use std::io;
use std::os::fd::AsRawFd;

use super::stream::Stream;
use crate::peer::{IdentifyPeerError, PeerProcess, RawPeer};

/// Keeps hold of one process.
#[derive(Debug)]
pub(crate) struct ProcessHandle(AuditToken);

/// `audit_token_t`: audit user, effective user and group, real user and
/// group, process, session, version of the process number.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct AuditToken {
    words: [u32; 8],
}

unsafe extern "C" {
    /// The path of the token's process; fails if the version does not fit.
    fn proc_pidpath_audittoken(
        token: *mut AuditToken,
        buffer: *mut libc::c_void,
        size: u32,
    ) -> libc::c_int;
}

pub(crate) fn identify(stream: &Stream) -> Result<RawPeer, IdentifyPeerError> {
    let token = peer_token(stream).map_err(|source| IdentifyPeerError::System {
        action: "read the audit token of",
        source,
    })?;
    let [_, uid, gid, _, _, pid, _, version] = token.words;
    let handle = ProcessHandle(token);
    if pid == 0 {
        return Err(IdentifyPeerError::Invisible);
    }
    if !handle.is_running() {
        return Err(IdentifyPeerError::Gone);
    }
    Ok(RawPeer {
        process: Some(PeerProcess {
            pid,
            start_time: u64::from(version),
            serial: None,
        }),
        uid: Some(uid),
        gid: Some(gid),
        handle,
    })
}

impl ProcessHandle {
    /// Whether the very process of the token still runs the same program.
    pub(crate) fn is_running(&self) -> bool {
        const PATH_BUFFER: u32 = 4096;
        let mut token = self.0;
        let mut buffer = [0_u8; PATH_BUFFER as usize];
        // SAFETY: both pointers are to live locals; the size is the buffer's,
        // and `AuditToken` has the layout of the system's `audit_token_t`.
        let length = unsafe {
            proc_pidpath_audittoken(&raw mut token, buffer.as_mut_ptr().cast(), PATH_BUFFER)
        };
        length > 0
    }
}

fn peer_token(stream: &Stream) -> io::Result<AuditToken> {
    let mut token = AuditToken::default();
    let whole = libc::socklen_t::try_from(size_of::<AuditToken>())
        .map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut size = whole;
    // SAFETY: the descriptor is open for as long as `stream` is borrowed; the
    // two pointers are to live locals, and `size` is the size of the first.
    let status = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_LOCAL,
            libc::LOCAL_PEERTOKEN,
            (&raw mut token).cast(),
            &raw mut size,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    if size != whole {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(token)
}
