//! Starts one command inside a sandbox: from fork to `execve`.
//!
//! Runs in init, whose memory the child borrows until the program starts, so
//! everything is allocated before. The order of the steps in `prepare` is the
//! guard: each gives up something the next no longer needs, and a step that
//! fails ends the child before the program starts. Next: `init` reaps what is
//! started here.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use fluffy_contract::isolation::{Command, TerminalSize};
use rustix::process::Pid;

use crate::guard::{Guard, Guards};
use crate::plan::{Engine, Limits};
use crate::seccomp::Filter;
use crate::sys::linux::call::{self, Words};
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
    let mut failed = None;
    let pid = call::fork_borrowing(&mut || {
        failed = Some(become_command(conditions, &image, &stdio));
        127
    });
    let pid = pid.map_err(at("fork"))?;
    match failed {
        None => Ok(Started { pid, terminal }),
        Some(error) => Err(error),
    }
}

/// Everything `execve` needs, made before the fork.
struct Image {
    candidates: Vec<CString>,
    argv: Words,
    environment: Words,
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
            argv: Words::new(
                command
                    .argv
                    .iter()
                    .map(|argument| text(argument))
                    .collect::<Result<_, _>>()?,
            ),
            environment: Words::new(
                variables
                    .iter()
                    .map(|(name, value)| text(&format!("{name}={value}")))
                    .collect::<Result<_, _>>()?,
            ),
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

/// Turns the forked child into the command. Returns only when that failed.
/// Nothing here may allocate: the memory is init's.
fn become_command(conditions: &Conditions, image: &Image, stdio: &Stdio) -> StartError {
    if let Err(error) = prepare(conditions, image, stdio) {
        return error;
    }
    let mut last = libc::ENOENT;
    for program in &image.candidates {
        let error = call::execute(program, &image.argv, &image.environment);
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        // Like a shell: a file that is there but not executable is remembered
        // while the search goes on.
        let missing = matches!(errno, libc::ENOENT | libc::ENOTDIR);
        if !missing || last == libc::ENOENT {
            last = errno;
        }
    }
    StartError::NotStarted(last)
}

fn prepare(conditions: &Conditions, image: &Image, stdio: &Stdio) -> Result<(), StartError> {
    let at = |step: &'static str| move |error: io::Error| StartError::Step(step, error);
    let errno = |step: &'static str| {
        move |error: rustix::io::Errno| StartError::Step(step, io::Error::from(error))
    };
    let keeps = |guard: Guard| !conditions.without.lacks(guard);
    // The kernel takes no wall and no filter from somebody whose programs can
    // gain privileges: these two go with that guard.
    let confined = |guard: Guard| keeps(guard) && keeps(Guard::NoNewPrivileges);
    call::unblock_signals();
    if keeps(Guard::NewSession) {
        rustix::process::setsid().map_err(errno("lead a session"))?;
    } else {
        // Still a group of its own, which is what signals go to.
        rustix::process::setpgid(None, None).map_err(errno("lead a group"))?;
    }
    if stdio.terminal {
        rustix::process::ioctl_tiocsctty(&stdio.input).map_err(errno("take the terminal"))?;
    }
    connect(stdio).map_err(at("connect the streams"))?;
    if keeps(Guard::DescriptorScrub) {
        call::close_at_exec().map_err(at("close other descriptors"))?;
    }
    // Under memory pressure the host lets sandboxes go before anything else.
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
    privileges::set_limits(&conditions.limits, conditions.engine, conditions.without)
        .map_err(at("set limits"))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let directory: &CStr = &image.directory;
    rustix::process::chdir(directory).map_err(errno("enter the directory"))?;
    privileges::drop_capabilities(conditions.without).map_err(at("give up capabilities"))?;
    if confined(Guard::Landlock) {
        conditions.wall.enforce().map_err(at("enforce Landlock"))?;
    }
    if confined(Guard::Seccomp) {
        // Last: it forbids what the steps above needed.
        let installed = conditions.filter.install();
        installed.map_err(at("install the system-call filter"))?;
    }
    Ok(())
}

fn connect(stdio: &Stdio) -> io::Result<()> {
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
}
