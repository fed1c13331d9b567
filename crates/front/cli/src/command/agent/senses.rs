//! What a person does at the keyboard, as channels.
//!
//! Lines are read by a thread of their own, because a read from a terminal can
//! not be given up; it ends with the process. Lines are edited by the terminal
//! itself, which every terminal can do.

use std::io::{self, BufRead, Read};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::failure::{self, Failure};

/// The longest line that is taken.
const MAX_LINE: u64 = 1024 * 1024;

/// What comes from the person.
#[derive(Debug)]
pub(crate) struct Senses {
    /// Lines that were typed; none where nobody can type.
    pub(crate) lines: Option<mpsc::Receiver<String>>,
    /// Every Ctrl-C.
    pub(crate) interrupts: mpsc::Receiver<()>,
}

/// What a person does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sense {
    /// They typed a line.
    Line(String),
    /// They will type no more.
    End,
    /// They pressed Ctrl-C.
    Interrupt,
}

/// Whether lines are read at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keyboard {
    /// Somebody can type.
    Read,
    /// Standard input is not ours.
    Left,
}

/// What of the person is listened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heed {
    /// All of it.
    Everything,
    /// Ctrl-C; lines wait.
    Interrupts,
}

impl Senses {
    /// Listens to this process's terminal.
    pub(crate) fn of_process(keyboard: Keyboard) -> Result<Self, Failure> {
        let lines = match keyboard {
            Keyboard::Read => Some(lines(MAX_LINE)?),
            Keyboard::Left => None,
        };
        Ok(Self {
            lines,
            interrupts: interrupts()?,
        })
    }

    /// The next thing the person does.
    pub(crate) async fn next(&mut self, heed: Heed) -> Sense {
        let Self { lines, interrupts } = self;
        tokio::select! {
            line = next_of(lines.as_mut()), if heed == Heed::Everything => match line {
                Some(line) => Sense::Line(line),
                None => {
                    self.lines = None;
                    Sense::End
                }
            },
            Some(()) = interrupts.recv() => Sense::Interrupt,
        }
    }

    /// Whether somebody can still type.
    pub(crate) const fn keyboard(&self) -> Keyboard {
        match self.lines {
            Some(_) => Keyboard::Read,
            None => Keyboard::Left,
        }
    }
}

/// Waits for ever where nobody can type.
async fn next_of(lines: Option<&mut mpsc::Receiver<String>>) -> Option<String> {
    match lines {
        Some(lines) => lines.recv().await,
        None => std::future::pending().await,
    }
}

/// The lines of standard input, each cut at this many bytes.
pub(crate) fn lines(longest: u64) -> Result<mpsc::Receiver<String>, Failure> {
    let (sender, receiver) = mpsc::channel(1);
    let read = move || {
        let mut input = io::stdin().lock();
        while let Some(line) = next_line(&mut input, longest) {
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    };
    let thread = std::thread::Builder::new().name("keyboard".to_owned());
    thread
        .spawn(read)
        .map_err(|error| failure::no_threads(&error))?;
    Ok(receiver)
}

/// One line without its end; none at the end of the input or on any failure.
fn next_line(input: &mut impl BufRead, longest: u64) -> Option<String> {
    let mut bytes = Vec::new();
    let read = input
        .by_ref()
        .take(longest)
        .read_until(b'\n', &mut bytes)
        .ok()?;
    if read == 0 {
        return None;
    }
    let line = String::from_utf8_lossy(&bytes);
    Some(line.trim_end_matches(['\n', '\r']).to_owned())
}

fn interrupts() -> Result<mpsc::Receiver<()>, Failure> {
    let mut signals =
        signal(SignalKind::interrupt()).map_err(|error| failure::no_terminal(&error))?;
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        while signals.recv().await.is_some() {
            // More than a few unread ones say nothing new.
            let _ = sender.try_send(());
        }
    });
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_need_not_be_text() {
        let mut input = io::Cursor::new(b"one\r\n\xff\n\nlast".to_vec());
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut input, 1024) {
            lines.push(line);
        }
        assert_eq!(lines, ["one", "\u{fffd}", "", "last"]);
        let mut long = io::Cursor::new(vec![b'x'; 3_000]);
        assert_eq!(next_line(&mut long, 1024).unwrap().len(), 1024);
    }
}
