//! What the operating system does for a sandbox; `cfg` only here.
//!
//! Nothing above this module makes a raw system call.

pub(crate) mod linux;
