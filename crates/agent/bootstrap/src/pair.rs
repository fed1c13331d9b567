//! A launcher and its kernel: started together, watched, ended together.
//!
//! They are siblings, joined by a socket that this process does not keep.
//! Whatever way it ends, nothing of either is left. Next: `sys`.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::heartbeat::{Beat, Heartbeat};
use crate::report::Fault;
use crate::sys::{self, Signals};
use crate::{Bootstrap, Engine};

/// How often a process that should end is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// How a pair ended.
#[derive(Debug)]
pub(crate) enum End {
    /// For good, with this code.
    Over(ExitCode),
    /// The kernel, or its launcher, was lost for this reason.
    Lost(String),
}

/// Why a pair is no longer watched.
#[derive(Debug, Clone, Copy)]
enum Why {
    /// A signal came.
    Signal,
    /// The kernel closed its end of the line: it is ending, or broken.
    HungUp,
    /// The launcher is gone, so that the kernel has to end.
    NoLauncher,
    /// The kernel did not answer.
    Silent,
}

/// Two processes that run.
#[derive(Debug)]
pub(crate) struct Pair {
    launcher: Child,
    kernel: Child,
    /// Where the kernel is pinged.
    line: UnixStream,
}

impl Pair {
    pub(crate) fn start(bootstrap: &Bootstrap, engine: &Engine) -> Result<Self, Fault> {
        let failed = |what| move |error| Fault::start(what, &error);
        let (launchers, kernels) = UnixStream::pair().map_err(failed("make a socket"))?;
        let (line, answers) = UnixStream::pair().map_err(failed("make a socket"))?;
        let nonblocking = line.set_nonblocking(true);
        nonblocking.map_err(failed("prepare a socket"))?;
        let streams = [stdio(launchers), Stdio::null()];
        let mut path = bootstrap.environment.clone();
        path.retain(|(name, _)| name == "PATH");
        let launcher = spawn(&engine.launcher, &path, streams);
        let mut launcher = launcher.map_err(failed("start the launcher"))?;
        let mut argv = bootstrap.kernel.clone();
        argv.extend(["--engine".into(), engine.name.clone().into()]);
        let streams = [stdio(kernels), stdio(answers)];
        let kernel = spawn(&argv, &bootstrap.environment, streams);
        let kernel = kernel.map_err(|error| {
            end(&mut launcher);
            Fault::start("start the kernel", &error)
        })?;
        Ok(Self {
            launcher,
            kernel,
            line,
        })
    }

    /// Watches both until one ends or a signal comes, then ends both.
    pub(crate) fn watch(mut self, bootstrap: &Bootstrap, signals: &mut Signals) -> End {
        let grace = bootstrap.grace;
        let (why, own) = match self.until_something(bootstrap, signals) {
            Why::Signal => {
                sys::signal(&self.kernel, signals.read());
                let own = ends_within(&mut self.kernel, grace, || signals.within(LOOK));
                (
                    "",
                    Some(own.map_or(ExitCode::FAILURE, |_| ExitCode::SUCCESS)),
                )
            }
            Why::HungUp => ("the kernel ended", self.done(grace)),
            Why::NoLauncher => ("the launcher ended", self.done(grace)),
            Why::Silent => ("the kernel did not answer", None),
        };
        let kernel = end(&mut self.kernel);
        // Without its kernel a launcher ends by itself, and cleans up first.
        ends_within(&mut self.launcher, grace, pause);
        let launcher = end(&mut self.launcher);
        let lost = || End::Lost(format!("{why} (kernel: {kernel}; launcher: {launcher})"));
        own.map_or_else(lost, End::Over)
    }

    /// The kernel's code, if it ends by itself now and it is no crash.
    fn done(&mut self, grace: Duration) -> Option<ExitCode> {
        let code = ends_within(&mut self.kernel, grace, pause)?.code()?;
        let code = u8::try_from(code).ok().filter(|code| [0, 2].contains(code));
        code.map(ExitCode::from)
    }

    fn until_something(&mut self, bootstrap: &Bootstrap, signals: &Signals) -> Why {
        let mut heartbeat = Heartbeat::new(bootstrap.rhythm);
        let began = Instant::now();
        loop {
            // Before it is asked for the time: this process may have slept.
            if !self.listen(&mut heartbeat, began) {
                return Why::HungUp;
            }
            match heartbeat.turn(began.elapsed()) {
                // If it cannot be sent, the missing answer will tell.
                Beat::Send(byte) => drop(self.line.write(&[byte])),
                Beat::Silent => return Why::Silent,
                Beat::Wait(time) => {
                    let time = time.min(bootstrap.rhythm.every);
                    let [signal, _] = sys::wait([signals.0.as_fd(), self.line.as_fd()], time);
                    if signal {
                        return Why::Signal;
                    }
                }
            }
            if !matches!(self.launcher.try_wait(), Ok(None)) {
                return Why::NoLauncher;
            }
        }
    }

    /// Takes what the kernel sent; whether it is still there.
    fn listen(&mut self, heartbeat: &mut Heartbeat, began: Instant) -> bool {
        let mut bytes = [0; 64];
        match self.line.read(&mut bytes) {
            Ok(count) => {
                let heard = bytes.iter().take(count);
                heard.for_each(|byte| heartbeat.heard(*byte, began.elapsed()));
                count > 0
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }
}

fn stdio(stream: UnixStream) -> Stdio {
    Stdio::from(OwnedFd::from(stream))
}

/// Starts a program with nothing but what is given.
fn spawn(
    argv: &[OsString],
    environment: &[(OsString, OsString)],
    [stdin, stdout]: [Stdio; 2],
) -> io::Result<Child> {
    let (program, arguments) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(stdin).stdout(stdout);
    command.env_clear().envs(environment.iter().cloned());
    sys::bind(&mut command);
    // The command is dropped here, and with it our copies of its sockets.
    command.spawn()
}

/// How a process ends within this time and before `pause` says stop.
fn ends_within(
    child: &mut Child,
    time: Duration,
    mut pause: impl FnMut() -> bool,
) -> Option<ExitStatus> {
    let until = Instant::now() + time;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until && !pause() => {}
            ended => return ended.ok().flatten(),
        }
    }
}

fn pause() -> bool {
    std::thread::sleep(LOOK);
    false
}

/// Ends a process, if it has not ended, and says how it did.
fn end(child: &mut Child) -> ExitStatus {
    // Fails only where it has ended.
    let _ = child.kill();
    child.wait().unwrap_or_default()
}
