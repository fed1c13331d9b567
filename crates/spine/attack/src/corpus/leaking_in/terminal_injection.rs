//! Types into the user's terminal.
//!
//! A comment, so that even a shell that gets it does nothing. CVE-2017-5226.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use crate::corpus::prelude::*;
use crate::sys::terminal;

pub(crate) const ATTACK: Attack = Attack::new(
    "terminal-injection",
    Family::LeakingIn,
    Guard::NewSession,
    attempt,
)
.gains("types commands into the terminal from which it was started")
.also_stopped_by(&[Guard::Seccomp])
.at_a_terminal();

fn attempt(stage: &Stage) -> Outcome {
    let text = format!("# {}\n", stage.nonce);
    let own = File::options().read(true).write(true).open("/dev/tty");
    let mut tries = vec![
        (rustix::stdio::stdin(), "standard input"),
        (rustix::stdio::stdout(), "standard output"),
    ];
    tries.extend(own.as_ref().ok().map(|file| (file.as_fd(), "/dev/tty")));
    Outcome::best(
        tries
            .into_iter()
            .map(|(line, name)| Outcome::of(&format!("TIOCSTI on {name}"), type_text(line, &text))),
    )
}

fn type_text(line: BorrowedFd<'_>, text: &str) -> Result<(), Errno> {
    text.bytes().try_for_each(|byte| {
        terminal::type_byte(line, byte).or_else(|_| terminal::type_byte_disguised(line, byte))
    })
}
