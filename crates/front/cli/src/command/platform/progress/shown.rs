//! What a person sees of something while it is waited for.
//!
//! The bottom line of a terminal, plain lines of talk without one, nothing for
//! programs. Decides nothing. Has to be closed, or the bottom line stays.

use std::time::{Duration, Instant};

use fluffy_report::{Footer, Printer, Text, Tone, Verbosity};
use serde_json::Value;

use super::{drawn, line, reasons};
use crate::failure::Failure;
use crate::session::Session;

/// What is shown of it so far.
pub(super) struct Shown<'a> {
    printer: &'a Printer,
    footer: Option<Footer<'a>>,
    silent: bool,
    began: Instant,
    /// What was said last; it is not said again.
    told: String,
}

impl<'a> Shown<'a> {
    pub(super) fn begin(session: &'a Session) -> Self {
        let printer = &session.printer;
        let silent = session.json() || printer.verbosity() == Verbosity::Quiet;
        Self {
            printer,
            footer: match silent {
                true => None,
                false => printer.footer(),
            },
            silent,
            began: Instant::now(),
            told: String::new(),
        }
    }

    /// How long it has been waited for.
    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Shows how far it is.
    pub(super) fn far(&mut self, id: &str, value: &Value, moves: bool) -> Result<(), Failure> {
        match &mut self.footer {
            Some(footer) => {
                // Why it does not go on stays on the screen, once.
                let why = reasons(value).join("; ");
                let mut above = Text::new();
                if why != self.told && !why.is_empty() && moves {
                    above.add(Tone::Caution, &format!("{why}\n"));
                }
                self.told = why;
                footer.write(&above, &drawn(value, self.began.elapsed()))?;
            }
            None => {
                let line = line(id, value);
                // How it ended is told as its result.
                if line != self.told && moves && !self.silent {
                    self.printer.note(&line);
                    self.told = line;
                }
            }
        }
        Ok(())
    }

    /// Shows why it is not known how far it is.
    pub(super) fn away(&mut self, why: &str) -> Result<(), Failure> {
        let text = format!("no answer, asking again: {why}");
        if self.silent || text == self.told {
            return Ok(());
        }
        match &mut self.footer {
            Some(footer) => {
                let mut above = Text::new();
                above.add(Tone::Caution, &format!("{text}\n"));
                footer.write(&above, &Text::new())?;
            }
            None => self.printer.note(&text),
        }
        self.told = text;
        Ok(())
    }

    /// Leaves the screen for what is written next.
    pub(super) fn close(mut self) -> Result<(), Failure> {
        match &mut self.footer {
            Some(footer) => Ok(footer.close()?),
            None => Ok(()),
        }
    }
}
