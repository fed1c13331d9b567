//! Who is at the other end of a named pipe, as Windows knows it.
//!
//! The handle of the process is the proof: while it is open its number is not
//! given to another. Twin of `linux/peer.rs`. Must never identify by the
//! number alone.
#![expect(
    unsafe_code,
    reason = "the identity of a pipe's client is only in the raw system calls"
)]

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};

use windows_sys::Win32::Foundation::{FILETIME, WAIT_TIMEOUT};
use windows_sys::Win32::System::Pipes::{GetNamedPipeClientProcessId, PeekNamedPipe};
use windows_sys::Win32::System::Threading::{
    GetProcessTimes, OpenProcess, PROCESS_QUERY_LIMITED_INFORMATION, PROCESS_SYNCHRONIZE,
    WaitForSingleObject,
};

use super::stream::Stream;
use crate::peer::{IdentifyPeerError, PeerProcess, RawPeer};

/// Keeps hold of one process.
#[derive(Debug)]
pub(crate) struct ProcessHandle(OwnedHandle);

pub(crate) fn identify(stream: &Stream) -> Result<RawPeer, IdentifyPeerError> {
    let system = |action| move |source| IdentifyPeerError::System { action, source };
    let Stream::Server(pipe) = stream else {
        return Err(IdentifyPeerError::Invisible);
    };
    let pid = client_pid(pipe).map_err(system("read the process number of"))?;
    let handle = hold(pid).map_err(system("hold"))?;
    let start_time = handle.start_time().map_err(system("read the start of"))?;
    // The pipe breaks with the process that connected: if it is whole after
    // the handle was opened, the handle is of that process.
    if !is_whole(pipe) || !handle.is_running() {
        return Err(IdentifyPeerError::Gone);
    }
    Ok(RawPeer {
        process: Some(PeerProcess {
            pid,
            start_time,
            serial: None,
        }),
        uid: None,
        gid: None,
        handle,
    })
}

impl ProcessHandle {
    /// Whether the process has not exited; an error counts as exited.
    pub(crate) fn is_running(&self) -> bool {
        // SAFETY: the handle is open for as long as `self` is.
        unsafe { WaitForSingleObject(self.0.as_raw_handle(), 0) == WAIT_TIMEOUT }
    }

    /// When the process was created, in units of 100 nanoseconds.
    fn start_time(&self) -> io::Result<u64> {
        let mut created = FILETIME::default();
        let mut rest = [FILETIME::default(); 3];
        let [exited, kernel, user] = &mut rest;
        // SAFETY: the handle is open and all four pointers are to live locals.
        let read = unsafe {
            GetProcessTimes(
                self.0.as_raw_handle(),
                &raw mut created,
                exited,
                kernel,
                user,
            )
        };
        if read == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((u64::from(created.dwHighDateTime) << 32) | u64::from(created.dwLowDateTime))
    }
}

fn client_pid(pipe: &impl AsRawHandle) -> io::Result<u32> {
    let mut pid = 0;
    // SAFETY: the handle is open while `pipe` is borrowed, `pid` a live local.
    let read = unsafe { GetNamedPipeClientProcessId(pipe.as_raw_handle(), &raw mut pid) };
    if read == 0 || pid == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(pid)
}

fn hold(pid: u32) -> io::Result<ProcessHandle> {
    let access = PROCESS_QUERY_LIMITED_INFORMATION | PROCESS_SYNCHRONIZE;
    // SAFETY: takes no pointers.
    let handle = unsafe { OpenProcess(access, 0, pid) };
    if handle.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the handle is open and nothing owns it.
    Ok(ProcessHandle(unsafe {
        OwnedHandle::from_raw_handle(handle)
    }))
}

fn is_whole(pipe: &impl AsRawHandle) -> bool {
    let none = std::ptr::null_mut();
    // SAFETY: the handle is open while `pipe` is borrowed; all pointers may be
    // null when nothing is to be read.
    let peeked = unsafe {
        PeekNamedPipe(
            pipe.as_raw_handle(),
            none,
            0,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    peeked != 0
}
