//! Ways to speak into a terminal as if its user had typed.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::checked;

/// Pushes one byte into the terminal's input.
pub(crate) fn type_byte(terminal: BorrowedFd<'_>, byte: u8) -> Result<(), Errno> {
    // SAFETY: TIOCSTI reads one byte.
    let answer = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSTI, &raw const byte) };
    checked(answer.into())?;
    Ok(())
}

/// As [`type_byte`], with rubbish in the upper half of the request number.
///
/// The kernel looks at 32 bits only; a filter that compares 64 lets it by.
pub(crate) fn type_byte_disguised(terminal: BorrowedFd<'_>, byte: u8) -> Result<(), Errno> {
    let request: libc::c_long = (1 << 32) | 0x5412;
    // SAFETY: as above.
    checked(unsafe {
        libc::syscall(
            libc::SYS_ioctl,
            terminal.as_raw_fd(),
            request,
            &raw const byte,
        )
    })?;
    Ok(())
}

/// Asks a virtual console to paste its selection.
pub(crate) fn paste_selection(terminal: BorrowedFd<'_>) -> Result<(), Errno> {
    const TIOCLINUX: libc::c_ulong = 0x541c;
    let paste = 3_u8;
    // SAFETY: TIOCLINUX reads one byte, its subcommand.
    let answer = unsafe { libc::ioctl(terminal.as_raw_fd(), TIOCLINUX, &raw const paste) };
    checked(answer.into())?;
    Ok(())
}

/// Makes a terminal the controlling one of this session.
pub(crate) fn take_as_controlling(terminal: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: takes a number, zero: steal from nobody.
    let answer = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) };
    checked(answer.into())?;
    Ok(())
}
