//! A named pipe that only our user can reach, and whose name only we hold.
//!
//! Twin of `unix/listener.rs`. The first instance claims the name, the access
//! list names the owner alone, remote clients are rejected. Must never wait
//! for a peer without a further instance ready to be made.
#![expect(
    unsafe_code,
    reason = "a pipe's access list can only be given as a raw pointer"
)]

use std::io;
use std::path::{Path, PathBuf};

use tokio::net::windows::named_pipe::{NamedPipeServer, ServerOptions};
use windows_sys::Win32::Foundation::{ERROR_ACCESS_DENIED, LocalFree};
use windows_sys::Win32::Security::Authorization::{
    ConvertStringSecurityDescriptorToSecurityDescriptorW, SDDL_REVISION_1,
};
use windows_sys::Win32::Security::{PSECURITY_DESCRIPTOR, SECURITY_ATTRIBUTES};

use super::stream::Stream;
use crate::listener::BindError;

/// What every local pipe's name starts with.
const PREFIX: &str = r"\\.\pipe\";

/// The longest name of a pipe, prefix included.
const MAX_PATH: usize = 256;

/// Protected; all rights to the owner; nothing to anyone else.
const OWNER_ONLY: &str = "D:P(A;;GA;;;OW)\0";

/// The name, and the instance that the next peer will get.
#[derive(Debug)]
pub(crate) struct RawListener {
    path: PathBuf,
    next: NamedPipeServer,
}

enum Instance {
    First,
    Further,
}

impl RawListener {
    pub(crate) fn bind(path: &Path) -> Result<Self, BindError> {
        let text = path.to_string_lossy();
        if text.len() > MAX_PATH {
            return Err(BindError::PathTooLong {
                path: path.to_owned(),
                length: text.len(),
                limit: MAX_PATH,
            });
        }
        if !text.starts_with(PREFIX) || text.len() == PREFIX.len() {
            return Err(BindError::NotAbsolute {
                path: path.to_owned(),
            });
        }
        let denied = i32::try_from(ERROR_ACCESS_DENIED).ok();
        let next = create(path, &Instance::First).map_err(|source| {
            if source.raw_os_error() == denied {
                BindError::InUse {
                    path: path.to_owned(),
                }
            } else {
                BindError::System {
                    action: "bind",
                    path: path.to_owned(),
                    source,
                }
            }
        })?;
        Ok(Self {
            path: path.to_owned(),
            next,
        })
    }

    pub(crate) async fn accept(&mut self) -> io::Result<Stream> {
        self.next.connect().await?;
        let further = create(&self.path, &Instance::Further)?;
        Ok(Stream::Server(std::mem::replace(&mut self.next, further)))
    }
}

fn create(path: &Path, instance: &Instance) -> io::Result<NamedPipeServer> {
    let descriptor = Descriptor::owner_only()?;
    let length =
        u32::try_from(size_of::<SECURITY_ATTRIBUTES>()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut attributes = SECURITY_ATTRIBUTES {
        nLength: length,
        lpSecurityDescriptor: descriptor.0,
        bInheritHandle: 0,
    };
    let mut options = ServerOptions::new();
    options
        .first_pipe_instance(matches!(instance, Instance::First))
        .reject_remote_clients(true);
    // SAFETY: `attributes` and the descriptor in it are valid and outlive the
    // call, which copies them.
    unsafe { options.create_with_security_attributes_raw(path, (&raw mut attributes).cast()) }
}

/// A security descriptor that the system allocated.
struct Descriptor(PSECURITY_DESCRIPTOR);

impl Descriptor {
    fn owner_only() -> io::Result<Self> {
        let text: Vec<u16> = OWNER_ONLY.encode_utf16().collect();
        let mut descriptor: PSECURITY_DESCRIPTOR = std::ptr::null_mut();
        // SAFETY: the text ends with a zero, `descriptor` is a live local, and
        // the size is allowed to be absent.
        let converted = unsafe {
            ConvertStringSecurityDescriptorToSecurityDescriptorW(
                text.as_ptr(),
                SDDL_REVISION_1,
                &raw mut descriptor,
                std::ptr::null_mut(),
            )
        };
        if converted == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(descriptor))
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the pointer came from the conversion and is freed once.
        unsafe { LocalFree(self.0) };
    }
}
