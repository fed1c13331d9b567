//! The first process: starts the launcher and the kernel, and watches them.
//!
//! Under 500 lines, so that it can be read whole: no business logic, no
//! network, nothing of ours and nothing beyond the standard library and the
//! system's calls. It never reads what its children say to each other. Next:
//! `restart` and `heartbeat` for the two decisions it makes, `pair` for the
//! processes.
//!
//! What a kernel must know: its standard input is the socket to its launcher;
//! its standard output is the socket on which it sends every byte back that it
//! reads, and ends when that is closed; its last two arguments are `--engine`
//! and the engine's name. Exit code 0 means that it is done, 2 that it cannot
//! work with what it was given; everything else is a crash.

#![cfg(unix)]

pub mod engine;
pub mod heartbeat;
mod pair;
mod report;
pub mod restart;
mod sys;

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use heartbeat::Rhythm;
use pair::{End, Pair};
use report::Fault;
use restart::{Allowance, Restarts};
use sys::Signals;

/// The configuration is never larger.
const LONGEST_CONFIGURATION: u64 = 1 << 20;

/// What is started, and how it is watched.
#[derive(Debug, Clone)]
pub struct Bootstrap {
    /// The user's configuration, which may choose among the engines.
    pub configuration: PathBuf,
    /// The engines it may choose, each with the launcher that brings it; the
    /// first is the default. Weaker ones belong here only if asked for.
    pub engines: Vec<Engine>,
    /// The kernel's program and arguments.
    pub kernel: Vec<OsString>,
    /// All variables that the kernel gets; the launcher gets `PATH` alone.
    pub environment: Vec<(OsString, OsString)>,
    /// How the kernel is pinged.
    pub rhythm: Rhythm,
    /// How often it is restarted.
    pub allowance: Allowance,
    /// How long a process may take to end when it was told to.
    pub grace: Duration,
}

/// One way of isolating.
#[derive(Debug, Clone)]
pub struct Engine {
    /// What the configuration calls it.
    pub name: String,
    /// The program and arguments of its launcher.
    pub launcher: Vec<OsString>,
}

/// Keeps a launcher and a kernel running until they are done.
///
/// Must be called before the process has a second thread: it blocks signals
/// for all that come later, and its children die with this thread.
///
/// Returns the kernel's own 0 or 2; after a signal 0, or 1 if the kernel had to
/// be killed; 7 if it gave up, and then the reason is on the standard error as
/// one line of JSON.
#[must_use]
pub fn run(bootstrap: &Bootstrap) -> ExitCode {
    supervise(bootstrap).unwrap_or_else(|fault| {
        fault.report();
        ExitCode::from(7)
    })
}

fn supervise(bootstrap: &Bootstrap) -> Result<ExitCode, Fault> {
    let mut signals = Signals::take().map_err(|error| Fault::start("watch for signals", &error))?;
    let engine = bootstrap.engine()?;
    let mut restarts = Restarts::new(bootstrap.allowance);
    let began = Instant::now();
    loop {
        let pair = Pair::start(bootstrap, engine)?;
        let why = match pair.watch(bootstrap, &mut signals) {
            End::Over(code) => return Ok(code),
            End::Lost(why) => why,
        };
        let Some(pause) = restarts.next(began.elapsed()) else {
            return Err(Fault::unstable(bootstrap.allowance, why));
        };
        report::restarting(&why, pause);
        if signals.within(pause) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

impl Bootstrap {
    fn engine(&self) -> Result<&Engine, Fault> {
        let mut bytes = Vec::new();
        if let Ok(file) = File::open(&self.configuration) {
            // What cannot be read is the kernel's to complain about.
            let _ = file.take(LONGEST_CONFIGURATION).read_to_end(&mut bytes);
        }
        let wanted = engine::wanted(&bytes);
        let is_wanted = |engine: &&Engine| wanted == Some(engine.name.as_bytes());
        let engine = self.engines.iter().find(is_wanted);
        let none = || Fault::start("choose an engine", &ErrorKind::NotFound.into());
        engine.or(self.engines.first()).ok_or_else(none)
    }
}
