//! Starts a process of the workload: from fork to `execve`.
//!
//! The order of the steps in [`Start::become_program`] is the guard: each
//! gives up something the next no longer needs, and a step that fails ends the
//! child before the program starts.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use fluffy_guest::config::Rlimits;
use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::call;
use crate::user::Identity;

/// Where programs are looked for if nobody says.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the user 0 of an instance may do inside it: what images expect of it
/// to prepare their files and become somebody else. Others may do none of it.
pub(crate) const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::NET_BIND_SERVICE);

/// Why a process did not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotStarted {
    /// One of the guest's codes.
    pub(crate) code: &'static str,
    /// More of it, for people.
    pub(crate) detail: String,
}

impl NotStarted {
    pub(crate) fn new(code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
        }
    }
}

/// What a process is started with.
pub(crate) struct Start<'a> {
    /// The words.
    pub(crate) command: &'a [String],
    /// The whole environment.
    pub(crate) environment: &'a BTreeMap<String, String>,
    /// Where it starts.
    pub(crate) directory: &'a str,
    /// Who it is.
    pub(crate) identity: &'a Identity,
    /// What it may use.
    pub(crate) limits: &'a Rlimits,
    /// Which system calls it may make, if not all.
    pub(crate) filter: Option<&'a [u8]>,
}

/// A process's ends of its three streams.
pub(crate) struct Streams {
    /// What it reads.
    pub(crate) input: OwnedFd,
    /// What it writes.
    pub(crate) output: OwnedFd,
    /// What it complains to.
    pub(crate) error: OwnedFd,
    /// Whether they are a terminal, to be its session's own.
    pub(crate) terminal: bool,
}

#[derive(Clone, Copy)]
enum Step {
    Prepare,
    Directory,
    User,
    Guard,
    Execute,
}

impl Step {
    const ALL: [Self; 5] = [
        Self::Prepare,
        Self::Directory,
        Self::User,
        Self::Guard,
        Self::Execute,
    ];
}

impl Start<'_> {
    /// Starts it, as the leader of a session of its own.
    pub(crate) fn start(&self, streams: Streams) -> Result<Pid, NotStarted> {
        let failed = |error: io::Error| NotStarted::new("exec_permission", error.to_string());
        let text = |text: &str| CString::new(text).map_err(|error| failed(error.into()));
        let argv = self
            .command
            .iter()
            .map(|word| text(word))
            .collect::<Result<Vec<_>, _>>()?;
        let environment = self
            .environment
            .iter()
            .map(|(key, value)| text(&format!("{key}={value}")))
            .collect::<Result<Vec<_>, _>>()?;
        let program = self.command.first().map_or("", String::as_str);
        let path = self.environment.get("PATH").map_or(PATH, String::as_str);
        let candidates = candidates(program, path);
        let candidates = candidates
            .iter()
            .map(|one| text(one))
            .collect::<Result<Vec<_>, _>>()?;
        let (said, say) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| failed(error.into()))?;
        match call::fork().map_err(failed)? {
            Call::Child => {
                let (step, error) = self.become_program(streams, &candidates, &argv, &environment);
                let errno = error.raw_os_error().unwrap_or(libc::EIO).to_le_bytes();
                let step = u8::try_from(step as usize).unwrap_or(0);
                let _ = File::from(say).write_all(&[[step].as_slice(), &errno].concat());
                call::exit_now(127)
            }
            Call::Parent(pid) => {
                drop((say, streams));
                let mut report = Vec::new();
                let _ = File::from(said).read_to_end(&mut report);
                match <[u8; 5]>::try_from(report.as_slice()) {
                    // The child lives on as the program; or was killed, which
                    // whoever reaps it will see.
                    Err(_) => Ok(pid),
                    Ok([step, errno @ ..]) => {
                        let _ = rustix::process::waitpid(
                            Some(pid),
                            rustix::process::WaitOptions::empty(),
                        );
                        Err(self.explain(step, i32::from_le_bytes(errno)))
                    }
                }
            }
        }
    }

    fn explain(&self, step: u8, errno: i32) -> NotStarted {
        let why = io::Error::from_raw_os_error(errno);
        let program = self.command.first().map_or("", String::as_str);
        match (Step::ALL.get(usize::from(step)), errno) {
            (Some(Step::Directory), _) => NotStarted::new(
                "workdir_missing",
                format!("`{:.256}`: {why}", self.directory),
            ),
            (Some(Step::User), _) => NotStarted::new("bad_user", why.to_string()),
            (Some(Step::Execute), libc::ENOENT | libc::ENOTDIR) => {
                NotStarted::new("exec_not_found", format!("`{program:.256}`: {why}"))
            }
            _ => NotStarted::new("exec_permission", format!("`{program:.256}`: {why}")),
        }
    }

    /// Never returns if the program starts.
    fn become_program(
        &self,
        streams: Streams,
        candidates: &[CString],
        argv: &[CString],
        environment: &[CString],
    ) -> (Step, io::Error) {
        if let Err(error) = prepare(streams) {
            return (Step::Prepare, error);
        }
        if let Err(error) = limit(self.limits) {
            return (Step::Guard, error);
        }
        if let Err(error) = self.become_user() {
            return (Step::User, error);
        }
        // As the user: it may be theirs alone.
        if let Err(error) = rustix::process::chdir(self.directory) {
            return (Step::Directory, error.into());
        }
        if let Err(error) = self.guard() {
            return (Step::Guard, error);
        }
        let mut last = io::Error::from_raw_os_error(libc::ENOENT);
        for candidate in candidates {
            let error = call::execute(candidate, argv, environment);
            match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                // Somewhere later in the path there may be one that works.
                Some(libc::EACCES) => last = error,
                _ => return (Step::Execute, error),
            }
        }
        (Step::Execute, last)
    }

    fn become_user(&self) -> io::Result<()> {
        let Identity {
            uid, gid, groups, ..
        } = self.identity;
        lower_bounds(self.kept())?;
        call::become_user(*uid, *gid, groups)
    }

    /// Whoever is not the user 0 has none.
    fn kept(&self) -> CapabilitySet {
        match self.identity.uid {
            0 => KEPT,
            _ => CapabilitySet::empty(),
        }
    }

    fn guard(&self) -> io::Result<()> {
        let kept = rustix::thread::capabilities(None)?.permitted & self.kept();
        rustix::thread::set_capabilities(
            None,
            CapabilitySets {
                effective: kept,
                permitted: kept,
                inheritable: CapabilitySet::empty(),
            },
        )?;
        rustix::thread::set_no_new_privs(true)?;
        if let Some(filter) = self.filter {
            call::install_filter(filter)?;
        }
        Ok(())
    }
}

use call::Forked as Call;

/// Nothing that this process ever executes can have more than these.
pub(crate) fn lower_bounds(kept: CapabilitySet) -> io::Result<()> {
    for bit in 0..64 {
        let Some(capability) = CapabilitySet::from_bits(1 << bit) else {
            break;
        };
        if kept.contains(capability) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // Past the last one that this kernel knows.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn prepare(streams: Streams) -> io::Result<()> {
    call::plain_signals();
    rustix::process::setsid()?;
    rustix::stdio::dup2_stdin(&streams.input)?;
    rustix::stdio::dup2_stdout(&streams.output)?;
    rustix::stdio::dup2_stderr(&streams.error)?;
    if streams.terminal {
        rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
    }
    call::close_at_exec()
}

fn limit(limits: &Rlimits) -> io::Result<()> {
    for (resource, most) in [
        (Resource::Nofile, limits.nofile),
        (Resource::Nproc, limits.nproc),
        (Resource::Core, limits.core),
    ] {
        // Nobody here may raise what the host allows.
        let hard = rustix::process::getrlimit(resource).maximum;
        let most = hard.map_or(most, |hard| hard.min(most));
        rustix::process::setrlimit(
            resource,
            Rlimit {
                current: Some(most),
                maximum: Some(most),
            },
        )?;
    }
    Ok(())
}

/// The files a program's name can mean, in order.
fn candidates(program: &str, path: &str) -> Vec<String> {
    if program.contains('/') {
        return vec![program.to_owned()];
    }
    path.split(':')
        .filter(|directory| directory.starts_with('/'))
        .map(|directory| format!("{directory}/{program}"))
        .collect()
}

/// A pipe whose near end does not block: far, near.
pub(crate) fn output_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&read, true)?;
    Ok((write, read))
}

/// The same the other way.
pub(crate) fn input_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&write, true)?;
    Ok((read, write))
}

/// Nothing to read, and nowhere to write.
pub(crate) fn nothing() -> io::Result<OwnedFd> {
    Ok(File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?
        .into())
}

/// A terminal of this size: its streams, and the near end.
pub(crate) fn terminal(cols: u16, rows: u16) -> io::Result<(Streams, OwnedFd)> {
    use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let near = openpt(flags)?;
    unlockpt(&near)?;
    let far = ioctl_tiocgptpeer(&near, flags)?;
    resize(&near, cols, rows)?;
    rustix::io::ioctl_fionbio(&near, true)?;
    let streams = Streams {
        output: far.try_clone()?,
        error: far.try_clone()?,
        input: far,
        terminal: true,
    };
    Ok((streams, near))
}

/// Gives a terminal another size.
pub(crate) fn resize(terminal: impl AsFd, cols: u16, rows: u16) -> io::Result<()> {
    let size = rustix::termios::Winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}

/// Sends a signal to all processes of the session that a process leads.
pub(crate) fn signal_session(leader: Pid, signal: Signal) {
    for pid in members(leader) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Whether any process of that session is left.
pub(crate) fn has_session(leader: Pid) -> bool {
    !members(leader).is_empty()
}

fn members(leader: Pid) -> Vec<Pid> {
    processes()
        .filter(|pid| session(*pid) == Some(leader.as_raw_nonzero().get()))
        .filter_map(Pid::from_raw)
        .collect()
}

/// All processes of this instance.
pub(crate) fn processes() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn session(pid: i32) -> Option<i32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // A name may hold anything, also brackets and spaces.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = String::from_utf8_lossy(stat.get(end..)?).into_owned();
    rest.split_ascii_whitespace().nth(4)?.parse().ok()
}

/// A signal by its number; none that only the kernel sends.
pub(crate) fn signal(name: &str) -> Option<Signal> {
    Signal::from_named_raw(fluffy_guest::config::signal_number(name)?)
}
