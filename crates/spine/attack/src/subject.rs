//! What gets attacked: anything that can run a command in isolation.
//!
//! Our own tiers, bare `bwrap` and `docker run` are all subjects; `command`
//! has the one that covers them, since each is a program in front of another.
//! Must never help an attack along or hold one back.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use fluffy_policy::word::Tier;
use serde::Serialize;

use crate::attack::{Aftermath, Attack, Network, Streams};
use crate::stage::Limits;

/// Something that runs a command in isolation.
pub trait Subject: fmt::Debug + Sync {
    /// Its name in tables.
    fn name(&self) -> &str;

    /// The version of the program behind it.
    fn version(&self) -> &str;

    /// The tier whose promises it is held to.
    fn tier(&self) -> Tier;

    /// What it is supposed to hold back.
    fn limits(&self) -> Limits;

    /// Why this attack cannot be tried on it, if so.
    fn lacks(&self, attack: &Attack) -> Option<String>;

    /// Runs one trial to its end, clean-up included.
    ///
    /// # Errors
    /// Only when the trial could not be started at all.
    fn run(&self, trial: &Trial<'_>) -> Result<Ran, RunTrialError>;

    /// What the last trial left in the subject's own places.
    fn leftovers(&self) -> Vec<String>;
}

/// One command to run in isolation.
#[derive(Debug)]
pub struct Trial<'a> {
    /// What follows `worker attack`: the attack's name and its stage.
    pub arguments: [String; 2],
    /// The project; also where the command starts.
    pub project: &'a Path,
    /// The environment that the starter has and the command must not see.
    pub environment: &'a [(String, String)],
    /// What the starter has open, to be inherited if possible.
    pub descriptors: [BorrowedFd<'a>; 2],
    /// What the three streams are.
    pub streams: Streams,
    /// What network it gets.
    pub network: Network,
    /// What the proxy permits.
    pub allow: [Allow; 2],
    /// What happens to its writes.
    pub aftermath: Aftermath,
    /// When to give up waiting; far beyond any limit under test.
    pub patience: Duration,
}

/// A host that the proxy lets through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allow {
    /// Its name.
    pub host: &'static str,
    /// Its port.
    pub port: u16,
    /// The address it stands for, if that needs to be permitted as well.
    pub address: Option<&'static str>,
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)?;
        self.address
            .map_or(Ok(()), |address| write!(f, "={address}"))
    }
}

/// What came out of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// Standard output: its beginning and its end, if it was long.
    pub output: Vec<u8>,
    /// Standard error, likewise.
    pub errors: Vec<u8>,
    /// What the user's shell would now read from the terminal.
    pub typed: Vec<u8>,
    /// How it ended.
    pub ended: Ended,
}

impl Ran {
    /// How it ended and what it last complained about, for people.
    pub(crate) fn describe(&self) -> String {
        let errors = String::from_utf8_lossy(&self.errors);
        let last: String = errors.trim().chars().rev().take(300).collect();
        let last: String = last.chars().rev().collect();
        match last.as_str() {
            "" => self.ended.to_string(),
            last => format!("{}, after `{last}`", self.ended),
        }
    }
}

/// How a trial ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Ended {
    /// With this code.
    Code {
        /// The code.
        code: i32,
    },
    /// By this signal.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// By a limit of the subject.
    Limit {
        /// Which.
        reason: Reason,
    },
    /// Not at all; it was killed after the trial's patience.
    Overdue,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code { code } => write!(f, "ended with code {code}"),
            Self::Signal { signal } => write!(f, "ended by signal {signal}"),
            Self::Limit { reason } => write!(f, "ended by the limit of {reason}"),
            Self::Overdue => write!(f, "did not end"),
        }
    }
}

/// Which limit ended a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Time.
    Time,
    /// Memory.
    Memory,
    /// Processes.
    Pids,
    /// Output.
    Output,
    /// Disk.
    Disk,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Time => "time",
            Self::Memory => "memory",
            Self::Pids => "processes",
            Self::Output => "output",
            Self::Disk => "disk",
        })
    }
}

/// Why a trial could not be started.
#[derive(Debug, thiserror::Error)]
pub enum RunTrialError {
    /// The program is missing or refused to start.
    #[error("could not start `{program}`")]
    Start {
        /// The program.
        program: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// No terminal could be made.
    #[error("could not make a terminal")]
    Terminal(#[source] std::io::Error),
    /// Its streams could not be read.
    #[error("could not read what `{program}` prints")]
    Read {
        /// The program.
        program: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Nothing protects the machine from this subject.
    #[error("`{subject}` runs attacks without isolation, and only inside a throwaway sandbox")]
    Unprotected {
        /// The subject.
        subject: String,
    },
}
