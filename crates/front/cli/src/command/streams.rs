//! The caller's own streams and signals, while a command runs elsewhere.
//!
//! Threads read and write them, so that a slow end keeps nobody else waiting.
//! Signals go to the command; only one that will not end by itself is killed.
//! Used by `sandbox/pump.rs` and `platform/exec.rs`.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fluffy_contract::isolation::Output;
use rustix::event::{PollFd, PollFlags};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How much is read at once.
const CHUNK: usize = 32 * 1024;
/// How long a command has to end after it was told to.
const GRACE: Duration = Duration::from_secs(10);
/// How often somebody presses ctrl-C before they mean it.
const INSISTENT: u32 = 3;

/// Standard output and error, written by a thread of their own: a reader that
/// is slow must not keep signals from the command.
pub(crate) struct Writer {
    pub(crate) pieces: mpsc::Sender<Output>,
    unheard: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Writer {
    pub(crate) fn start() -> Self {
        let (pieces, mut queue) = mpsc::channel::<Output>(1);
        let unheard = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&unheard);
        let thread = thread::spawn(move || {
            while let Some(piece) = queue.blocking_recv() {
                let written = match piece {
                    Output::Stdout(bytes) => write_all(&mut io::stdout().lock(), &bytes),
                    // What nobody hears of errors is no reason to end.
                    Output::Stderr(bytes) => {
                        let _ = write_all(&mut io::stderr().lock(), &bytes);
                        Ok(())
                    }
                };
                if written.is_err() {
                    flag.store(true, Ordering::Relaxed);
                }
            }
        });
        Self {
            pieces,
            unheard,
            thread,
        }
    }

    /// Whether this piece is for an output that nobody reads any more.
    pub(crate) fn is_unheard(&self, piece: &Output) -> bool {
        matches!(piece, Output::Stdout(_)) && self.unheard.load(Ordering::Relaxed)
    }

    /// Waits until the last piece is written.
    pub(crate) async fn finish(self) {
        drop(self.pieces);
        let thread = self.thread;
        let _ = tokio::task::spawn_blocking(move || thread.join()).await;
    }
}

fn write_all(stream: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)?;
    stream.flush()
}

/// Standard input, read by a thread that stops when this is dropped.
pub(crate) struct Reader {
    _stop: io::PipeWriter,
}

impl Reader {
    /// Starts reading; the channel ends where the input does.
    pub(crate) fn start(pieces: mpsc::Sender<Vec<u8>>) -> io::Result<Self> {
        let (stopped, stop) = io::pipe()?;
        thread::spawn(move || {
            while let Ok(Some(piece)) = read_unless(&stopped) {
                if pieces.blocking_send(piece).is_err() {
                    break;
                }
            }
        });
        Ok(Self { _stop: stop })
    }
}

/// The next piece of standard input; nothing at its end, or when it is over.
fn read_unless(stopped: &io::PipeReader) -> io::Result<Option<Vec<u8>>> {
    let stdin = io::stdin();
    let mut polled = [
        PollFd::new(&stdin, PollFlags::IN),
        PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN),
    ];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, None))?;
    let [_, stop] = &polled;
    if !stop.revents().is_empty() {
        return Ok(None);
    }
    let mut bytes = vec![0; CHUNK];
    // Past the buffer of the standard library, which could hide bytes from
    // whoever reads after us.
    let length = rustix::io::retry_on_intr(|| rustix::io::read(&stdin, &mut bytes))?;
    bytes.truncate(length);
    Ok((length > 0).then_some(bytes))
}

/// What happened outside.
pub(crate) enum Event {
    Resized,
    Signal(i32),
}

/// The signals that mean the command, not us.
pub(crate) struct Signals {
    heard: mpsc::Receiver<i32>,
    interrupts: u32,
    /// When a command that was told to end is killed.
    deadline: Option<Instant>,
}

impl Signals {
    pub(crate) fn listen() -> Self {
        let (tell, heard) = mpsc::channel(8);
        let wanted = [
            Signal::HUP,
            Signal::INT,
            Signal::QUIT,
            Signal::TERM,
            Signal::WINCH,
        ];
        for number in wanted.map(Signal::as_raw) {
            // A signal that cannot be listened to does what it always does.
            let Ok(mut stream) = signal(SignalKind::from_raw(number)) else {
                continue;
            };
            let tell = tell.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() {
                    if tell.send(number).await.is_err() {
                        break;
                    }
                }
            });
        }
        Self {
            heard,
            interrupts: 0,
            deadline: None,
        }
    }

    pub(crate) async fn next(&mut self) -> Event {
        let deadline = self.deadline;
        let overdue = async move {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            heard = self.heard.recv() => match heard {
                Some(number) => self.meant(number),
                None => std::future::pending().await,
            },
            () = overdue => {
                self.deadline = None;
                Event::Signal(Signal::KILL.as_raw())
            }
        }
    }

    fn meant(&mut self, number: i32) -> Event {
        if number == Signal::WINCH.as_raw() {
            return Event::Resized;
        }
        if number == Signal::INT.as_raw() {
            self.interrupts += 1;
            if self.interrupts >= INSISTENT {
                return Event::Signal(Signal::KILL.as_raw());
            }
        } else if self.deadline.is_none() {
            self.deadline = Some(Instant::now() + GRACE);
        }
        Event::Signal(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signals() -> Signals {
        let (_, heard) = mpsc::channel(1);
        Signals {
            heard,
            interrupts: 0,
            deadline: None,
        }
    }

    fn number(event: Event) -> Option<i32> {
        match event {
            Event::Resized => None,
            Event::Signal(number) => Some(number),
        }
    }

    #[test]
    fn the_third_interrupt_kills() {
        let mut signals = signals();
        let heard: Vec<_> = (0..3)
            .map(|_| number(signals.meant(Signal::INT.as_raw())))
            .collect();
        let expected = [Signal::INT, Signal::INT, Signal::KILL].map(|s| Some(s.as_raw()));
        assert_eq!(heard, expected);
        assert_eq!(signals.deadline, None);
    }

    #[test]
    fn who_is_told_to_end_gets_a_while_for_it() {
        let mut signals = signals();
        let term = Signal::TERM.as_raw();
        assert_eq!(number(signals.meant(term)), Some(term));
        let first = signals.deadline;
        assert!(first.is_some());
        assert_eq!(number(signals.meant(term)), Some(term));
        assert_eq!(signals.deadline, first);
        assert_eq!(number(signals.meant(Signal::WINCH.as_raw())), None);
    }
}
