//! Starts one command inside a sandbox: from fork to `execve`.
//!
//! Runs in init, which is single-threaded, so the forked child may allocate.
//! The order of the steps in [`become_command`] is the guard: each gives up
//! something the next no longer needs, and a step that fails ends the child
//! before the program starts. Next: `init` reaps what is started here.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use fluffy_contract::isolation::{Command, TerminalSize};
use rustix::process::Pid;

use crate::guard::{Guard, Guards};
use crate::plan::{Engine, Limits};
use crate::seccomp::Filter;
use crate::sys::linux::call::{self, Forked};
use crate::sys::linux::privileges;
use crate::wall::Wall;

/// What every command of a sandbox has in common.
pub(crate) struct Conditions {
    /// The whole environment.
    pub(crate) environment: BTreeMap<String, String>,
    /// Where commands start.
    pub(crate) directory: PathBuf,
    /// The numbers.
    pub(crate) limits: Limits,
    /// Which system calls may be made.
    pub(crate) filter: Filter,
    /// The second wall behind the mounts.
    pub(crate) wall: Wall,
    /// Who made the namespaces.
    pub(crate) engine: Engine,
    /// The guards a control leaves out.
    pub(crate) without: Guards,
}

impl Conditions {
    /// Whether init is the first process of a namespace.
    pub(crate) fn has_pid_namespace(&self) -> bool {
        self.engine.has_pid_namespace() && self.without.has_pid_namespace()
    }
}

/// A command that runs.
#[derive(Debug)]
pub(crate) struct Started {
    /// Its process, which leads its own session.
    pub(crate) pid: Pid,
    /// The caller's end of its terminal.
    pub(crate) terminal: Option<OwnedFd>,
}

/// Why a command does not run.
#[derive(Debug)]
pub(crate) enum StartError {
    /// The program could not be executed: not there, not executable, …
    NotStarted(i32),
    /// A step before that failed; nothing of the program ran.
    Step(&'static str, io::Error),
}

/// Starts a command with these streams, or with a terminal of its own.
pub(crate) fn start(
    conditions: &Conditions,
    command: &Command,
    streams: Vec<OwnedFd>,
) -> Result<Started, StartError> {
    let image = Image::new(conditions, command)?;
    let at = |step: &'static str| move |error: io::Error| StartError::Step(step, error);
    let (stdio, terminal) = match command.terminal {
        Some(size) => open_terminal(size).map_err(at("open a terminal"))?,
        None => (Stdio::from_streams(streams)?, None),
    };
    let (mut status, report) = std::io::pipe().map_err(at("make a pipe"))?;
    match call::fork(0).map_err(at("fork"))? {
        Forked::Child => {
            drop(status);
            let failure = become_command(conditions, &image, stdio);
            failure.tell(report);
            call::exit_now(127)
        }
        Forked::Parent { pid, .. } => {
            drop(report);
            drop(stdio);
            let mut told = Vec::new();
            status
                .read_to_end(&mut told)
                .map_err(at("hear from the command"))?;
            match ChildFailure::heard(&told) {
                None => Ok(Started { pid, terminal }),
                Some(error) => Err(error),
            }
        }
    }
}

/// Everything `execve` needs, made before the fork.
struct Image {
    candidates: Vec<CString>,
    argv: Vec<CString>,
    environment: Vec<CString>,
    directory: CString,
}

impl Image {
    fn new(conditions: &Conditions, command: &Command) -> Result<Self, StartError> {
        let refuse = |what| StartError::Step(what, io::ErrorKind::InvalidInput.into());
        let text = |text: &str| {
            CString::new(text).map_err(|_| refuse("read an argument without NUL bytes"))
        };
        let program = command.argv.first().filter(|program| !program.is_empty());
        let program = program.ok_or_else(|| refuse("find a program in an empty command"))?;
        let mut variables = conditions.environment.clone();
        for (name, value) in &command.environment {
            if crate::plan::forbidden(name) {
                return Err(refuse("set a variable that changes what programs load"));
            }
            variables.insert(name.clone(), value.clone());
        }
        let directory = command.directory.as_ref().unwrap_or(&conditions.directory);
        let directory = directory
            .to_str()
            .filter(|_| directory.is_absolute())
            .ok_or_else(|| refuse("start in a directory that is not absolute"))?;
        Ok(Self {
            candidates: candidates(program, variables.get("PATH").map_or("", String::as_str))
                .iter()
                .map(|path| text(path))
                .collect::<Result<_, _>>()?,
            argv: command
                .argv
                .iter()
                .map(|argument| text(argument))
                .collect::<Result<_, _>>()?,
            environment: variables
                .iter()
                .map(|(name, value)| text(&format!("{name}={value}")))
                .collect::<Result<_, _>>()?,
            directory: text(directory)?,
        })
    }
}

/// The files a program's name can mean, in order.
fn candidates(program: &str, path: &str) -> Vec<String> {
    if program.contains('/') {
        return vec![program.to_owned()];
    }
    path.split(':')
        .filter(|directory| Path::new(directory).is_absolute())
        .map(|directory| format!("{directory}/{program}"))
        .collect()
}

/// The child's ends of its three streams.
struct Stdio {
    input: OwnedFd,
    output: OwnedFd,
    error: OwnedFd,
    /// Whether these are a terminal, to be the session's own.
    terminal: bool,
}

impl Stdio {
    fn from_streams(streams: Vec<OwnedFd>) -> Result<Self, StartError> {
        let [input, output, error] = <[OwnedFd; 3]>::try_from(streams).map_err(|_| {
            StartError::Step("find three streams", io::ErrorKind::InvalidInput.into())
        })?;
        Ok(Self {
            input,
            output,
            error,
            terminal: false,
        })
    }
}

fn open_terminal(size: TerminalSize) -> io::Result<(Stdio, Option<OwnedFd>)> {
    use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let outer = openpt(flags)?;
    unlockpt(&outer)?;
    let inner = ioctl_tiocgptpeer(&outer, flags)?;
    rustix::termios::tcsetwinsize(
        &inner,
        rustix::termios::Winsize {
            ws_row: size.rows,
            ws_col: size.columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        },
    )?;
    let stdio = Stdio {
        output: inner.try_clone()?,
        error: inner.try_clone()?,
        input: inner,
        terminal: true,
    };
    Ok((stdio, Some(outer)))
}

/// Why the child never became the program.
struct ChildFailure {
    step: u8,
    errno: i32,
}

/// What the child does before the program; the index travels as a byte.
const STEPS: &[&str] = &[
    "execute the program",
    "lead a session",
    "take the terminal",
    "connect the streams",
    "close other descriptors",
    "set limits",
    "enter the directory",
    "give up capabilities",
    "enforce Landlock",
    "install the system-call filter",
];

impl ChildFailure {
    fn at(step: u8, error: &io::Error) -> Self {
        Self {
            step,
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        }
    }

    fn tell(&self, mut report: impl Write) {
        let mut message = vec![self.step];
        message.extend(self.errno.to_be_bytes());
        // Nobody is left to hear of a failure here; the exit code says it too.
        let _ = report.write_all(&message);
    }

    fn heard(told: &[u8]) -> Option<StartError> {
        let (&step, errno) = told.split_first()?;
        let errno = errno
            .first_chunk::<4>()
            .map_or(libc::EIO, |bytes| i32::from_be_bytes(*bytes));
        if step == 0 {
            return Some(StartError::NotStarted(errno));
        }
        let step = STEPS.get(usize::from(step)).copied().unwrap_or("start");
        Some(StartError::Step(step, io::Error::from_raw_os_error(errno)))
    }
}

/// Turns the forked child into the command. Returns only when that failed.
fn become_command(conditions: &Conditions, image: &Image, stdio: Stdio) -> ChildFailure {
    match prepare(conditions, image, stdio) {
        Err(failure) => failure,
        Ok(()) => {
            let mut last = io::Error::from_raw_os_error(libc::ENOENT);
            for program in &image.candidates {
                let error = call::execute(program, &image.argv, &image.environment);
                // Like a shell: a file that is there but not executable is
                // remembered while the search goes on.
                let missing = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR));
                if !missing || last.raw_os_error() == Some(libc::ENOENT) {
                    last = error;
                }
            }
            ChildFailure::at(0, &last)
        }
    }
}

fn prepare(conditions: &Conditions, image: &Image, stdio: Stdio) -> Result<(), ChildFailure> {
    let at = |step: u8| move |error: io::Error| ChildFailure::at(step, &error);
    let errno = |step: u8| move |error: rustix::io::Errno| ChildFailure::at(step, &error.into());
    let keeps = |guard: Guard| !conditions.without.lacks(guard);
    // The kernel takes no wall and no filter from somebody whose programs can
    // gain privileges: these two go with that guard.
    let confined = |guard: Guard| keeps(guard) && keeps(Guard::NoNewPrivileges);
    call::reset_signals();
    if keeps(Guard::NewSession) {
        rustix::process::setsid().map_err(errno(1))?;
    } else {
        // Still a group of its own, which is what signals go to.
        rustix::process::setpgid(None, None).map_err(errno(1))?;
    }
    if stdio.terminal {
        rustix::process::ioctl_tiocsctty(&stdio.input).map_err(errno(2))?;
    }
    connect(stdio).map_err(at(3))?;
    if keeps(Guard::DescriptorScrub) {
        call::close_at_exec().map_err(at(4))?;
    }
    // Under memory pressure the host lets sandboxes go before anything else.
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
    privileges::set_limits(&conditions.limits, conditions.engine, conditions.without)
        .map_err(at(5))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let directory: &CStr = &image.directory;
    rustix::process::chdir(directory).map_err(errno(6))?;
    privileges::drop_capabilities(conditions.without).map_err(at(7))?;
    if confined(Guard::Landlock) {
        conditions.wall.enforce().map_err(at(8))?;
    }
    if confined(Guard::Seccomp) {
        // Last: it forbids what the steps above needed.
        conditions.filter.install().map_err(at(9))?;
    }
    Ok(())
}

fn connect(stdio: Stdio) -> io::Result<()> {
    rustix::stdio::dup2_stdin(&stdio.input)?;
    rustix::stdio::dup2_stdout(&stdio.output)?;
    rustix::stdio::dup2_stderr(&stdio.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_for_in_absolute_directories_only() {
        assert_eq!(
            candidates("ls", "/bin:.::/usr/bin"),
            ["/bin/ls", "/usr/bin/ls"]
        );
        assert_eq!(candidates("./ls", "/bin"), ["./ls"]);
        assert!(candidates("ls", "").is_empty());
    }

    #[test]
    fn a_childs_failure_is_heard() {
        let mut told = Vec::new();
        ChildFailure {
            step: 0,
            errno: libc::ENOENT,
        }
        .tell(&mut told);
        assert!(matches!(
            ChildFailure::heard(&told),
            Some(StartError::NotStarted(libc::ENOENT))
        ));
        let mut told = Vec::new();
        ChildFailure {
            step: 9,
            errno: libc::EPERM,
        }
        .tell(&mut told);
        assert!(matches!(
            ChildFailure::heard(&told),
            Some(StartError::Step("install the system-call filter", _))
        ));
        assert!(ChildFailure::heard(&[]).is_none());
    }
}
