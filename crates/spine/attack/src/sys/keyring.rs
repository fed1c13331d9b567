//! The kernel's keyrings, which no namespace separates by itself.

use std::ffi::CStr;

use rustix::io::Errno;

use super::checked;

const SESSION: libc::c_long = -3;
const JOIN_SESSION: libc::c_long = 1;
const SEARCH: libc::c_long = 10;
const READ: libc::c_long = 11;

/// Gives the calling thread, and what it starts, an empty session keyring.
pub(crate) fn join_new_session() -> Result<(), Errno> {
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: no name means a fresh anonymous keyring.
    checked(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION, none) })?;
    Ok(())
}

/// Adds a key to the session keyring.
pub(crate) fn add(name: &CStr, payload: &[u8]) -> Result<(), Errno> {
    // SAFETY: the kernel copies both strings and the payload of this length.
    checked(unsafe {
        libc::syscall(
            libc::SYS_add_key,
            c"user".as_ptr(),
            name.as_ptr(),
            payload.as_ptr(),
            payload.len(),
            SESSION,
        )
    })?;
    Ok(())
}

/// Finds a key by its name in the session keyring and reads it.
pub(crate) fn read(name: &CStr) -> Result<String, Errno> {
    // SAFETY: reads two strings.
    let key = checked(unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            SEARCH,
            SESSION,
            c"user".as_ptr(),
            name.as_ptr(),
            0,
        )
    })?;
    let mut buffer = [0_u8; 256];
    // SAFETY: the buffer has 256 bytes, and says so.
    let length =
        checked(unsafe { libc::syscall(libc::SYS_keyctl, READ, key, buffer.as_mut_ptr(), 256) })?;
    let length = usize::try_from(length).map_err(|_| Errno::RANGE)?;
    let bytes = buffer.get(..length).ok_or(Errno::RANGE)?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}
