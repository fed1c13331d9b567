//! Pastes into a virtual console.
//!
//! Nothing is selected, so nothing is pasted. CVE-2023-1523.

use rustix::io::Errno;

use crate::corpus::prelude::*;
use crate::sys::terminal;

pub(crate) const ATTACK: Attack =
    Attack::new("terminal-paste", Family::LeakingIn, Guard::Seccomp, attempt)
        .gains("pastes commands into a console of the machine")
        .also_stopped_by(&[Guard::NewSession])
        .on_its_word()
        .at_a_terminal();

fn attempt(_: &Stage) -> Outcome {
    match terminal::paste_selection(rustix::stdio::stdin()) {
        // Not a console: whether a filter was there cannot be seen.
        Err(Errno::NOTTY | Errno::INVAL) => Outcome::unavailable("this terminal is no console"),
        result => Outcome::of("TIOCLINUX", result),
    }
}
