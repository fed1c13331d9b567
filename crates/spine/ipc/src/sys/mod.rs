//! What differs between operating systems, as twins with equal names.
//!
//! `stream` is the byte stream, `listener` the place where peers connect,
//! `peer` the answer of the operating system to "who is it". `cfg` stands here
//! and nowhere else; unsafe code stands in `peer` (and Windows' `listener`).

#[cfg(target_os = "linux")]
#[path = "linux/peer.rs"]
pub(crate) mod peer;

#[cfg(target_os = "macos")]
#[path = "macos/peer.rs"]
pub(crate) mod peer;

#[cfg(windows)]
#[path = "windows/peer.rs"]
pub(crate) mod peer;

#[cfg(unix)]
#[path = "unix/listener.rs"]
pub(crate) mod listener;

#[cfg(windows)]
#[path = "windows/listener.rs"]
pub(crate) mod listener;

#[cfg(unix)]
#[path = "unix/stream.rs"]
pub(crate) mod stream;

#[cfg(windows)]
#[path = "windows/stream.rs"]
pub(crate) mod stream;
