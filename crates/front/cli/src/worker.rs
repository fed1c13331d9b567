//! The hidden words that make this executable something smaller.
//!
//! Looked at before anything is parsed, read or allocated for a command: a
//! worker starts with nothing, and most of them distrust whoever starts them.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::session::WORKER_ARGUMENTS;

/// Runs the worker that was asked for; nothing if none was.
pub(crate) fn run() -> Option<ExitCode> {
    let mut given = std::env::args_os().skip(1);
    if given.next()? != "worker" {
        return None;
    }
    // What is no text names no worker; clap will say so.
    let words: Vec<String> = std::iter::once(Ok("worker".to_owned()))
        .chain(given.map(std::ffi::OsString::into_string))
        .collect::<Result<_, _>>()
        .ok()?;
    if words == WORKER_ARGUMENTS {
        return Some(fluffy_script::worker_main());
    }
    let plain: Vec<&str> = words.iter().map(String::as_str).collect();
    if let [_, "attack", name, stage] = plain.as_slice() {
        return Some(attack(name, stage));
    }
    fluffy_sandbox::worker::run(&words).or_else(|| fluffy_container::worker::run(&words))
}

/// Plays one attempt of the corpus, inside whatever it is to break out of.
fn attack(name: &str, stage: &str) -> ExitCode {
    match fluffy_attack::work(name, stage) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Whoever judges it takes the missing marker for a failure.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}
