//! The host's end of one worker: a child process with a deadline on every byte.
//!
//! The host measures time itself and trusts nothing that the worker says: what
//! arrives is bounded, checked and tamed. Dropping a [`Worker`] kills the
//! process and collects it. Next: `keeper` decides when to start another.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fluffy_base::Timestamp;

use crate::problem::{Problem, tame};
use crate::wire::{
    Ask, ExchangeFrameError, Failure, FromWorker, Load, MAX_FROM_WORKER, MAX_TO_WORKER, ToWorker,
    VERSION, Verdict, read_frame, write_frame,
};

/// How a worker process is started: this program with these arguments must
/// call [`worker_main`](crate::worker_main).
#[derive(Debug, Clone)]
pub struct WorkerCommand {
    /// The program, as an absolute path; `fluffy` names itself.
    pub program: PathBuf,
    /// Its arguments; `fluffy` passes its hidden subcommand.
    pub args: Vec<OsString>,
}

/// What one extension may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long one evaluation may take, from sending to the answer; above 3 s
    /// of processor time the worker ends itself.
    pub evaluation: Duration,
    /// How long starting a worker and preparing an engine may take.
    pub load: Duration,
    /// The JavaScript heap, in bytes; the process has 128 MiB in all.
    pub memory: u64,
    /// The JavaScript stack, in bytes.
    pub stack: u64,
}

impl Limits {
    /// The limits of the specification: 100 ms, and half a mebibyte of stack
    /// and 32 MiB of heap within the 128 MiB of the process.
    pub const SPECIFIED: Self = Self {
        evaluation: Duration::from_millis(100),
        load: Duration::from_secs(5),
        memory: 32 * 1024 * 1024,
        stack: 512 * 1024,
    };
}

/// A running worker whose extension is loaded.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    link: UnixStream,
    limits: Limits,
}

/// What an extension did instead of answering.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// Its code, or code it called, threw.
    #[error("it threw `{0}`")]
    Threw(String),
    /// The host's deadline passed.
    #[error("it did not answer within {} ms", .0.as_millis())]
    Late(Duration),
    /// It hit its memory limit.
    #[error("it ran out of memory")]
    Memory,
    /// It returned something that is no verdict.
    #[error("it returned nonsense: {0}")]
    Nonsense(String),
    /// Its process ended.
    #[error("its worker process died")]
    Died,
    /// Its process sent something that is no answer.
    #[error("its worker process sent garbage")]
    Garbled,
}

/// Why a worker did not get as far as being asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartWorkerError {
    /// The operating system gave no process.
    #[error("no process could be started")]
    Spawn(#[source] io::Error),
    /// The extension's source was refused.
    #[error("its source was refused")]
    Refused(#[source] Problem),
    /// The process failed while loading.
    #[error("{0}")]
    Fault(Fault),
}

impl Worker {
    /// Starts a process and loads the extension into it; also returns the
    /// actions it declares (`None`: all).
    ///
    /// Call it from a thread that lives as long as the worker should: Linux
    /// sends the worker's death signal when the *thread* that made it ends.
    pub(crate) fn start(
        command: &WorkerCommand,
        source: &str,
        limits: Limits,
    ) -> Result<(Self, Option<Vec<String>>), StartWorkerError> {
        let worker = Self::spawn(command, limits).map_err(StartWorkerError::Spawn)?;
        let deadline = Deadline::after(limits.load);
        let load = ToWorker::Load(Load {
            version: VERSION,
            source: source.to_owned(),
            memory: limits.memory,
            stack: limits.stack,
            load_ms: millis(limits.load),
            evaluation_ms: millis(limits.evaluation),
        });
        worker
            .send(&load, &deadline)
            .map_err(StartWorkerError::Fault)?;
        match worker.receive(&deadline).map_err(StartWorkerError::Fault)? {
            FromWorker::Loaded { actions } => Ok((worker, actions)),
            FromWorker::Refused(problem) => Err(StartWorkerError::Refused(problem.tamed())),
            FromWorker::Ready | FromWorker::Spoke { .. } | FromWorker::Failed { .. } => {
                Err(StartWorkerError::Fault(Fault::Garbled))
            }
        }
    }

    /// Asks for one verdict. Afterwards either [`Worker::settle`] it or, after
    /// a fault, drop it.
    pub(crate) fn judge(
        &mut self,
        request: &str,
        now: Timestamp,
    ) -> Result<(Verdict, String), Fault> {
        let deadline = Deadline::after(self.limits.evaluation);
        let ask = ToWorker::Ask(Ask {
            now_micros: now.as_micros(),
            request: request.to_owned(),
        });
        self.send(&ask, &deadline)?;
        match self.receive(&deadline)? {
            FromWorker::Spoke { verdict, reason } => Ok((verdict, tame(&reason))),
            FromWorker::Failed { failure, detail } => Err(match failure {
                Failure::Threw => Fault::Threw(tame(&detail)),
                Failure::Interrupted => Fault::Late(self.limits.evaluation),
                Failure::Memory => Fault::Memory,
                Failure::Nonsense => Fault::Nonsense(tame(&detail)),
            }),
            FromWorker::Loaded { .. } | FromWorker::Ready | FromWorker::Refused(_) => {
                Err(Fault::Garbled)
            }
        }
    }

    /// Waits until the worker has a fresh engine for the next request.
    pub(crate) fn settle(&mut self) -> Result<(), Fault> {
        match self.receive(&Deadline::after(self.limits.load))? {
            FromWorker::Ready => Ok(()),
            FromWorker::Failed { detail, .. } => Err(Fault::Threw(tame(&detail))),
            FromWorker::Loaded { .. } | FromWorker::Spoke { .. } | FromWorker::Refused(_) => {
                Err(Fault::Garbled)
            }
        }
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends the process, whatever it is doing.
    pub(crate) fn kill(&mut self) {
        // Neither can fail for a child that has not been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn spawn(command: &WorkerCommand, limits: Limits) -> io::Result<Self> {
        // A socket instead of pipes, because its timeouts bound writing too.
        let (link, theirs) = UnixStream::pair()?;
        let theirs = OwnedFd::from(theirs);
        let child = Command::new(&command.program)
            .args(&command.args)
            .env_clear()
            .current_dir("/")
            // A Ctrl-C in the terminal must not take the guards away.
            .process_group(0)
            .stdin(Stdio::from(theirs.try_clone()?))
            .stdout(Stdio::from(theirs))
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self {
            child,
            link,
            limits,
        })
    }

    fn send(&self, message: &ToWorker, deadline: &Deadline) -> Result<(), Fault> {
        let mut timed = Timed {
            link: &self.link,
            deadline,
        };
        write_frame(&mut timed, message, MAX_TO_WORKER).map_err(|error| deadline.fault(&error))
    }

    fn receive(&self, deadline: &Deadline) -> Result<FromWorker, Fault> {
        let mut timed = Timed {
            link: &self.link,
            deadline,
        };
        match read_frame(&mut timed, MAX_FROM_WORKER) {
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(Fault::Died),
            Err(error) => Err(deadline.fault(&error)),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The moment at which the host stops waiting.
struct Deadline {
    limit: Duration,
    /// `None` is too far away to be reached.
    end: Option<Instant>,
}

impl Deadline {
    fn after(limit: Duration) -> Self {
        Self {
            limit,
            end: Instant::now().checked_add(limit),
        }
    }

    /// What is left; an error when nothing is.
    fn left(&self) -> io::Result<Option<Duration>> {
        let Some(end) = self.end else {
            return Ok(None);
        };
        match end.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Ok(Some(left)),
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn fault(&self, error: &ExchangeFrameError) -> Fault {
        match error {
            ExchangeFrameError::Connection(error) => match error.kind() {
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Fault::Late(self.limit),
                _ => Fault::Died,
            },
            ExchangeFrameError::TooLong { .. } | ExchangeFrameError::Malformed(_) => Fault::Garbled,
        }
    }
}

/// A connection on which no single read or write outlasts the deadline.
struct Timed<'a> {
    link: &'a UnixStream,
    deadline: &'a Deadline,
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.link.set_read_timeout(self.deadline.left()?)?;
        self.link.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.link.set_write_timeout(self.deadline.left()?)?;
        self.link.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
