//! A second process: this very test binary, started again with an order.
//!
//! It keeps the tally of a ledger until it is killed, or until the test that
//! started it is gone.

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use super::{LIMIT, Place, tally};

/// The address of the ledger that the child shall project.
const ORDER: &str = "FLUFFY_CONFORMANCE_CHILD";
/// What the child says once it has applied something.
const AT_WORK: &str = "at work";

/// Starts a process that projects the ledger until it is killed, and waits
/// until it is at work. Something must be appended meanwhile.
pub(crate) fn project(place: &impl Place) -> Child {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "child_process", "--nocapture"])
        .env(ORDER, place.address())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().ends_with(AT_WORK)));
    child
}

/// What the started process does; nothing in a plain test run.
pub(crate) fn run<P: Place>() {
    let Ok(address) = env::var(ORDER) else { return };
    let ledger = P::open_at(&address);
    let projector = tally::start(&ledger, tally::Tally::new());
    let more = projector.progress(tally::NAME).unwrap().applied + 1;
    projector
        .wait_for_blocking(tally::NAME, more, LIMIT)
        .unwrap();
    let mut output = io::stdout().lock();
    writeln!(output, "{AT_WORK}").unwrap();
    // Ends when the other end of the pipe does.
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
}
