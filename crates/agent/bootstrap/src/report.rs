//! What went wrong, as one line of JSON on the standard error.
//!
//! The shape is that of an error over IPC: code, message, retryable. Never
//! fails: nobody may be listening.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use crate::restart::Allowance;

/// Why it ended without the kernel being done: a code, and two sentences.
#[derive(Debug)]
pub(crate) struct Fault(&'static str, String, String);

impl Fault {
    /// Something could not be started at all; trying again would not help.
    pub(crate) fn start(what: &str, error: &io::Error) -> Self {
        let message = format!("the bootstrap could not {what}");
        Self("cannot_start", message, error.to_string())
    }

    /// The kernel was lost too often.
    pub(crate) fn unstable(allowance: Allowance, last: String) -> Self {
        let (restarts, within) = (allowance.restarts, allowance.within.as_secs());
        let message = format!("the kernel was lost after {restarts} restarts within {within} s");
        Self("kernel_unstable", message, last)
    }

    pub(crate) fn report(&self) {
        let Self(code, message, last) = self;
        let (message, last) = (json(message), json(last));
        say(&format!(
            r#"{{"error":{{"code":"{code}","message":{message},"retryable":false,"last":{last}}}}}"#
        ));
    }
}

/// Says that the kernel is started again.
pub(crate) fn restarting(why: &str, pause: Duration) {
    let (message, millis) = (json(why), pause.as_millis());
    say(&format!(
        r#"{{"warning":{{"code":"kernel_restarting","message":{message},"pause_ms":{millis}}}}}"#
    ));
}

fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn json(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            plain => quoted.push(plain),
        }
    }
    quoted + "\""
}
