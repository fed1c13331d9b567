//! The caller's own terminal, while a command inside has one like it.
//!
//! Raw, so that every key goes to the command; given back as it was on every
//! way out. Must never be left raw: [`RawTerminal`] restores when dropped.

use std::io::{self, IsTerminal};

use fluffy_contract::isolation::TerminalSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Whether a person sits at both ends.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// The size of the window.
pub(crate) fn size() -> TerminalSize {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => TerminalSize {
            columns: size.ws_col,
            rows: size.ws_row,
        },
        // A window without a size is one of the usual size.
        _ => TerminalSize {
            columns: 80,
            rows: 24,
        },
    }
}

/// The terminal without its own handling of lines and keys.
#[derive(Debug)]
pub(crate) struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// Makes it raw until this is dropped.
    pub(crate) fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // There is nobody to tell: the terminal is what is broken.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}
