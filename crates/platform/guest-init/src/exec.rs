//! One command beside the workload.
//!
//! Its output is read only while the node has given credit, and its input is
//! acknowledged only when it was written: a slow reader on either side slows
//! the other, and nothing is dropped.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use fluffy_guest::Link;
use fluffy_guest::message::{ExecOpen, FromGuest};
use rustix::event::PollFlags;
use rustix::process::{Pid, Signal, WaitStatus};

use crate::process::{self, NotStarted, Start, Streams};

/// How much is read at once.
const PIECE: usize = 64 << 10;
/// When a command that nobody wants any more is told more clearly.
const TERM_AFTER: Duration = Duration::from_secs(5);
const KILL_AFTER: Duration = Duration::from_secs(30);

/// A command that runs.
pub(crate) struct Exec {
    /// Its channel.
    pub(crate) channel: u32,
    /// Its first process.
    pub(crate) pid: Pid,
    /// Where its input goes; a terminal is also its output.
    input: Option<OwnedFd>,
    terminal: bool,
    unwritten: VecDeque<u8>,
    input_over: bool,
    output: Option<OwnedFd>,
    error: Option<OwnedFd>,
    ended: Option<WaitStatus>,
    /// Whether it was told that its session is over.
    dismissed: bool,
    /// Since when nobody wants it, and how it was told.
    unwanted: Option<(Instant, Option<Signal>)>,
}

/// One of a command's descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// What it reads.
    Input,
    /// What it writes.
    Output,
    /// What it complains to.
    Error,
}

impl Exec {
    /// Starts one.
    pub(crate) fn start(order: &ExecOpen, start: &Start<'_>) -> Result<Self, NotStarted> {
        let failed = |error: io::Error| NotStarted::new("exec_permission", error.to_string());
        let (streams, input, output, error) = if order.tty {
            let (streams, near) = process::terminal(order.cols, order.rows).map_err(failed)?;
            let output = near.try_clone().map_err(failed)?;
            (streams, Some(near), output, None)
        } else {
            let (input, near_input) = match order.stdin {
                true => process::input_pipe().map(|(far, near)| (far, Some(near))),
                false => process::nothing().map(|far| (far, None)),
            }
            .map_err(failed)?;
            let (output, near_output) = process::output_pipe().map_err(failed)?;
            let (error, near_error) = process::output_pipe().map_err(failed)?;
            let streams = Streams {
                input,
                output,
                error,
                terminal: false,
            };
            (streams, near_input, near_output, Some(near_error))
        };
        Ok(Self {
            channel: order.channel,
            pid: start.start(streams)?,
            input,
            terminal: order.tty,
            unwritten: VecDeque::new(),
            input_over: false,
            output: Some(output),
            error,
            ended: None,
            dismissed: false,
            unwanted: None,
        })
    }

    /// What to wait for.
    pub(crate) fn interests(&self, link: &Link) -> Vec<(Part, BorrowedFd<'_>, PollFlags)> {
        let mut all = Vec::new();
        let pending = !self.unwritten.is_empty();
        if let Some(input) = self.input.as_ref().filter(|_| pending) {
            all.push((Part::Input, input.as_fd(), PollFlags::OUT));
        }
        for (part, fd) in [(Part::Output, &self.output), (Part::Error, &self.error)] {
            if let Some(fd) = fd
                && link.credit(self.channel_of(part)) > 0
            {
                all.push((part, fd.as_fd(), PollFlags::IN));
            }
        }
        all
    }

    fn channel_of(&self, part: Part) -> u32 {
        match part {
            Part::Input | Part::Output => self.channel,
            Part::Error => self.channel + 1,
        }
    }

    /// A descriptor is ready.
    pub(crate) fn ready(&mut self, part: Part, link: &mut Link) {
        match part {
            Part::Input => self.write(link),
            Part::Output | Part::Error => self.read(part, link),
        }
    }

    /// Bytes for its input.
    pub(crate) fn take(&mut self, bytes: &[u8], link: &mut Link) {
        if self.input.is_none() || self.input_over {
            // Nobody will read it; the writer must not wait for that.
            link.consumed(self.channel, bytes.len());
            return;
        }
        self.unwritten.extend(bytes);
        self.write(link);
    }

    /// Its input is over.
    pub(crate) fn end_input(&mut self) {
        // A terminal has no such end; people type it.
        self.input_over = !self.terminal;
        self.close_input();
    }

    fn close_input(&mut self) {
        if self.input_over && self.unwritten.is_empty() {
            self.input = None;
        }
    }

    fn write(&mut self, link: &mut Link) {
        while let Some(input) = &self.input {
            let (bytes, _) = self.unwritten.as_slices();
            if bytes.is_empty() {
                break;
            }
            match rustix::io::write(input, bytes) {
                Ok(written) => {
                    self.unwritten.drain(..written);
                    link.consumed(self.channel, written);
                }
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => {}
                // It does not read any more.
                Err(_) => {
                    let lost = std::mem::take(&mut self.unwritten).len();
                    link.consumed(self.channel, lost);
                    self.input = None;
                    link.send_reset(self.channel);
                }
            }
        }
        self.close_input();
    }

    fn read(&mut self, part: Part, link: &mut Link) {
        let channel = self.channel_of(part);
        let slot = match part {
            Part::Error => &mut self.error,
            Part::Input | Part::Output => &mut self.output,
        };
        let room = link.credit(channel).min(PIECE);
        let (Some(fd), false) = (&slot, room == 0) else {
            return;
        };
        let mut buffer = vec![0; room];
        match rustix::io::read(fd, &mut buffer) {
            Ok(0) => *slot = None,
            Ok(length) => {
                link.send_data(channel, buffer.get(..length).unwrap_or_default());
            }
            Err(rustix::io::Errno::AGAIN) if self.ended.is_some() => {
                // What it wrote itself is read; what others still write who
                // hold its streams is not its output.
                *slot = None;
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            // A terminal says so when nobody has it open any more.
            Err(_) => *slot = None,
        }
    }

    /// Its first process ended.
    pub(crate) fn ended(&mut self, status: WaitStatus) {
        self.ended = Some(status);
    }

    /// Gives it another size.
    pub(crate) fn resize(&self, cols: u16, rows: u16) {
        if let Some(terminal) = self.output.as_ref().filter(|_| self.terminal) {
            let _ = process::resize(terminal, cols, rows);
        }
    }

    /// Sends a signal to it.
    pub(crate) fn signal(&mut self, signal: Signal) {
        // So a session is ended whose client is gone, and one that is revoked.
        self.dismissed |= matches!(signal, Signal::HUP | Signal::KILL);
        if self.ended.is_none() {
            let _ = rustix::process::kill_process_group(self.pid, signal);
        }
    }

    /// Whether others of a session that is over do not know so: only the group
    /// of its first process heard the signal.
    pub(crate) fn leaves_others(&self) -> bool {
        self.dismissed && process::has_session(self.pid)
    }

    /// Nobody wants it any more.
    pub(crate) fn give_up(&mut self) {
        if self.unwanted.is_some() {
            return;
        }
        (self.input, self.output, self.error) = (None, None, None);
        self.unwritten.clear();
        process::signal_session(self.pid, Signal::HUP);
        self.unwanted = Some((Instant::now(), None));
    }

    /// Whether it is still the node's.
    pub(crate) fn is_wanted(&self) -> bool {
        self.unwanted.is_none()
    }

    /// When it has to be looked at, if nothing happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let (since, told) = self.unwanted.as_ref()?;
        let after = match told {
            None => TERM_AFTER,
            Some(Signal::TERM) => KILL_AFTER,
            // Its end is all that is left to wait for.
            Some(_) => return None,
        };
        Some(*since + after)
    }

    /// Tells it more clearly, when it is time. Whether it is over.
    pub(crate) fn look(&mut self, now: Instant) -> bool {
        let Some((since, told)) = &mut self.unwanted else {
            return false;
        };
        let age = now.saturating_duration_since(*since);
        let signal = match told {
            None if age >= TERM_AFTER => Some(Signal::TERM),
            Some(Signal::TERM) if age >= KILL_AFTER => Some(Signal::KILL),
            _ => None,
        };
        if let Some(signal) = signal {
            *told = Some(signal);
            process::signal_session(self.pid, signal);
        }
        // Others of its session may not have listened.
        self.ended.is_some() && !process::has_session(self.pid)
    }

    /// Reads on after its end, until all of its output went: then how it ended.
    pub(crate) fn finish(&mut self, link: &mut Link) -> Option<FromGuest> {
        let status = self.ended?;
        for part in [Part::Output, Part::Error] {
            loop {
                let open = match part {
                    Part::Error => self.error.is_some(),
                    _ => self.output.is_some(),
                };
                if !open {
                    break;
                }
                if link.credit(self.channel_of(part)) == 0 {
                    return None;
                }
                self.read(part, link);
            }
        }
        let (exit_code, signal) = (status.exit_status(), status.terminating_signal());
        Some(FromGuest::ExecExit {
            channel: self.channel,
            exit_code,
            signal,
        })
    }
}
