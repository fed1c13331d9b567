//! The only place of `xtask` that prints.
//!
//! Everything here is talk for the person or the CI log; nothing parses it.

use std::io::{IsTerminal, Write};

/// Prints a line.
pub(crate) fn line(text: &str) {
    if !text.is_empty() {
        // A closed pipe ends the reading, not the run.
        let _ = writeln!(std::io::stdout().lock(), "{text}");
    }
}

/// Prints what went wrong.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "error: {text}");
}

/// Prints the heading of a step, easy to find in a long log.
pub(crate) fn heading(text: &str) {
    line(&format!("\n━━ {text}"));
}

/// Whether a person sits at the other end.
pub(crate) fn is_interactive() -> bool {
    std::env::var_os("CI").is_none() && std::io::stdin().is_terminal()
}
