//! Lowers the worker's own privileges before it reads a single byte.
//!
//! Uses limits and a filter that every Linux process can put over itself; the
//! launcher's sandbox comes on top where there is one. Nothing here can be
//! undone by the worker. Next: `worker` calls this first.

use std::io;
use std::time::Duration;

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit,
};
use rustix::time::ClockId;

use crate::engine;

/// What a worker may map beyond its own program.
const MEMORY: u64 = 128 * 1024 * 1024;
/// How much processor time loading or one request may use, in seconds. The
/// host's deadline is far below; this ends a worker that escaped it.
const CPU_SECONDS: u64 = 3;

/// Proof that this process has given up what it does not need.
#[derive(Debug)]
pub(crate) struct Confined {
    cpu_limit: Duration,
}

/// Why a process could not be confined.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfineError {
    /// The environment could hold secrets of the parent.
    #[error("the environment is not empty")]
    Environment,
    /// The program's own size is unknown.
    #[error("cannot read `/proc/self/statm`")]
    Size(#[source] io::Error),
    /// The operating system refused a limit.
    #[error("cannot set `{what}`")]
    Limit {
        what: &'static str,
        #[source]
        source: rustix::io::Errno,
    },
    /// No engine could be built to ask for the time zone.
    #[error("cannot settle on a time zone")]
    TimeZone(#[source] rquickjs::Error),
    /// The kernel took no filter of system calls.
    #[error("cannot give up system calls")]
    Seal(#[source] io::Error),
}

/// Gives up everything that running a script does not need.
pub(crate) fn confine() -> Result<Confined, ConfineError> {
    if std::env::vars_os().next().is_some() {
        return Err(ConfineError::Environment);
    }
    let size = own_size().map_err(ConfineError::Size)?;
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|source| ConfineError::Limit {
        what: "parent death signal",
        source,
    })?;
    rustix::thread::set_no_new_privs(true).map_err(|source| ConfineError::Limit {
        what: "no new privileges",
        source,
    })?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|source| ConfineError::Limit {
        what: "not dumpable",
        source,
    })?;
    let limits = [
        ("core size", Resource::Core, 0),
        ("file size", Resource::Fsize, 0),
        ("processes", Resource::Nproc, 0),
        ("locked memory", Resource::Memlock, 0),
        ("address space", Resource::As, size.saturating_add(MEMORY)),
        // Last: from here on nothing can be opened.
        ("open files", Resource::Nofile, 0),
    ];
    for (what, resource, most) in limits {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        setrlimit(resource, limit).map_err(|source| ConfineError::Limit { what, source })?;
    }
    let mut confined = Confined {
        cpu_limit: Duration::ZERO,
    };
    confined.renew_cpu()?;
    engine::settle_time_zone().map_err(ConfineError::TimeZone)?;
    // Whoever escapes the engine can compute, answer, and nothing else.
    fluffy_sandbox::seccomp::seal().map_err(ConfineError::Seal)?;
    Ok(confined)
}

impl Confined {
    /// Allows processor time for one more request.
    pub(crate) fn renew_cpu(&mut self) -> Result<(), ConfineError> {
        let used = rustix::time::clock_gettime(ClockId::ProcessCPUTime);
        let used = u64::try_from(used.tv_sec).unwrap_or(0);
        let most = used.saturating_add(CPU_SECONDS);
        let limit = Duration::from_secs(most);
        if limit == self.cpu_limit {
            return Ok(());
        }
        self.cpu_limit = limit;
        setrlimit(
            Resource::Cpu,
            Rlimit {
                current: Some(most),
                maximum: None,
            },
        )
        .map_err(|source| ConfineError::Limit {
            what: "processor time",
            source,
        })
    }
}

/// How much this process has mapped already, in bytes.
fn own_size() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text
        .split(' ')
        .next()
        .and_then(|pages| pages.parse().ok())
        .ok_or(io::ErrorKind::InvalidData)?;
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(u64::MAX);
    Ok(pages.saturating_mul(page))
}
