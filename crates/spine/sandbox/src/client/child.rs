//! A running command: its streams, its limits of output, its end.
//!
//! Output is read only when somebody asks, so a slow reader slows the command
//! down and nothing piles up. The descriptors are pipes or a terminal made for
//! this command: no file of the host is ever handed in.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use fluffy_base::id::SandboxId;
use fluffy_contract::BoxFuture;
use fluffy_contract::isolation::{
    Child, Command, Exit, Finished, Limit, Output, SandboxError, TerminalSize,
};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::watch;

use super::{LauncherHandle, SandboxHandle};
use crate::protocol::{Answer, Ask, ExecId};
use crate::sys::linux::call;
use crate::template::Lifetime;

/// How much is read at once.
const CHUNK: usize = 64 * 1024;
/// What is still in a pipe after the command ended is waited for this long:
/// a process it left behind may hold the pipe open for ever.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// A command that runs, or ran. Dropping it ends the command.
#[derive(Debug)]
pub struct ChildHandle {
    launcher: LauncherHandle,
    sandbox: SandboxId,
    exec: ExecId,
    streams: Streams,
    exit: watch::Receiver<Option<Exit>>,
    /// What may still be written before the command is ended.
    left: Option<u64>,
    /// Whether it wrote more than that.
    spent: bool,
    /// How long it may be silent.
    silence: Option<Duration>,
    started: std::time::Instant,
}

#[derive(Debug)]
enum Streams {
    Pipes {
        input: Option<pipe::Sender>,
        output: Option<pipe::Receiver>,
        error: Option<pipe::Receiver>,
    },
    Terminal(Option<AsyncFd<OwnedFd>>),
}

/// Where a running command reads from.
#[derive(Debug)]
pub struct ChildInput(InputEnd);

#[derive(Debug)]
enum InputEnd {
    Pipe(Option<pipe::Sender>),
    Terminal(AsyncFd<OwnedFd>),
}

impl ChildInput {
    /// Writes all of it, as fast as the command reads.
    ///
    /// # Errors
    /// When the command does not read any more.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.0 {
            InputEnd::Pipe(Some(input)) => input.write_all(bytes).await,
            InputEnd::Pipe(None) => Err(io::ErrorKind::BrokenPipe.into()),
            InputEnd::Terminal(terminal) => write_terminal(terminal, bytes).await,
        }
    }

    /// The pipe itself, for whoever writes when there is room.
    ///
    /// # Errors
    /// When it is a terminal, or closed.
    pub fn into_pipe(self) -> io::Result<pipe::Sender> {
        match self.0 {
            InputEnd::Pipe(Some(input)) => Ok(input),
            InputEnd::Pipe(None) => Err(io::ErrorKind::BrokenPipe.into()),
            InputEnd::Terminal(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl ChildHandle {
    pub(super) async fn start(
        sandbox: &SandboxHandle,
        exec: ExecId,
        command: Command,
    ) -> Result<Self, SandboxError> {
        let (launcher, id) = (sandbox.launcher.clone(), sandbox.id);
        let engine = |source: io::Error| SandboxError::Engine {
            sandbox: id,
            operation: "start a command",
            source: source.into(),
        };
        let left = command.output.map(|most| most.0);
        let terminal = command.terminal.is_some();
        let (mut streams, theirs) = if terminal {
            (Streams::Terminal(None), Vec::new())
        } else {
            pipes().map_err(engine)?
        };
        let link = &launcher.shared.link;
        let exit = link.expect_exit(id, exec);
        let ask = Ask::Exec {
            sandbox: id,
            exec,
            command,
        };
        let answered = link.ask(ask, &theirs).await;
        // Our copies of its ends must go, or its streams would never end.
        drop(theirs);
        match answered {
            Ok((Answer::Done, mut descriptors)) => {
                if let Streams::Terminal(slot) = &mut streams {
                    // A program that was not found never had a terminal.
                    if let Some(descriptor) = descriptors.pop() {
                        rustix::io::ioctl_fionbio(&descriptor, true)
                            .map_err(|error| engine(error.into()))?;
                        *slot = Some(call::register(descriptor).map_err(engine)?);
                    }
                }
            }
            answered => {
                link.forget_exit(id, exec);
                return Err(launcher.error(id, "start a command", answered));
            }
        }
        let silence = match sandbox.lifetime {
            Lifetime::Silent(span) => Some(Duration::from(span)),
            Lifetime::Owner | Lifetime::Total(_) => None,
        };
        Ok(Self {
            launcher,
            sandbox: id,
            exec,
            streams,
            exit,
            left,
            spent: false,
            silence,
            started: std::time::Instant::now(),
        })
    }

    /// Its input apart from the rest, so that it can be written to while its
    /// output is read; dropping it ends a stream, not a terminal.
    ///
    /// # Errors
    /// When the system gives no second descriptor for a terminal.
    pub fn take_input(&mut self) -> io::Result<ChildInput> {
        Ok(ChildInput(match &mut self.streams {
            Streams::Pipes { input, .. } => InputEnd::Pipe(input.take()),
            Streams::Terminal(None) => InputEnd::Pipe(None),
            Streams::Terminal(Some(terminal)) => {
                let copy = terminal.get_ref().try_clone()?;
                InputEnd::Terminal(call::register(copy)?)
            }
        }))
    }

    /// Runs it to its end and keeps what it wrote.
    ///
    /// # Errors
    /// When the launcher is gone.
    pub async fn finish(mut self) -> Result<Finished, SandboxError> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.close_input().await?;
        while let Some(output) = self.output().await? {
            match output {
                Output::Stdout(bytes) => stdout.extend(bytes),
                Output::Stderr(bytes) => stderr.extend(bytes),
            }
        }
        let exit = self.wait().await?;
        Ok(Finished {
            exit,
            stdout,
            stderr,
            took: self.started.elapsed(),
        })
    }

    async fn next(&mut self) -> Result<Option<Output>, SandboxError> {
        if self.spent {
            return Ok(None);
        }
        let (output, read_after_end) = self.read_or_end().await;
        match output {
            Some(Ok(output)) => Ok(output),
            Some(Err(source)) => Err(SandboxError::Engine {
                sandbox: self.sandbox,
                operation: "read its output",
                source: source.into(),
            }),
            None if read_after_end => Ok(None),
            None => {
                self.end(Limit::Time).await?;
                Ok(None)
            }
        }
    }

    /// The next piece, or nothing when it is silent for too long; and whether
    /// the command had ended.
    async fn read_or_end(&mut self) -> (Option<io::Result<Option<Output>>>, bool) {
        let ended = wait_for_exit(self.exit.clone());
        let silence = self.silence;
        let read = self.streams.read();
        tokio::pin!(read, ended);
        let mut read_after_end = false;
        loop {
            let quiet = async {
                match (silence, read_after_end) {
                    (_, true) => tokio::time::sleep(LAST_WORDS).await,
                    (Some(silence), false) => tokio::time::sleep(silence).await,
                    (None, false) => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                output = &mut read => return (Some(output), read_after_end),
                () = &mut ended, if !read_after_end => read_after_end = true,
                () = quiet => return (None, read_after_end),
            }
        }
    }

    /// Cuts what is over the limit off, and ends the command when it is.
    async fn count(&mut self, mut output: Output) -> Result<Output, SandboxError> {
        let Some(left) = self.left else {
            return Ok(output);
        };
        let (Output::Stdout(bytes) | Output::Stderr(bytes)) = &mut output;
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if length > left {
            bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            self.spent = true;
            self.end(Limit::Output).await?;
        }
        self.left = Some(left.saturating_sub(length));
        Ok(output)
    }

    async fn end(&self, limit: Limit) -> Result<(), SandboxError> {
        let ask = Ask::End {
            sandbox: self.sandbox,
            exec: self.exec,
            limit,
        };
        match self.launcher.shared.link.ask(ask, &[]).await {
            Ok((Answer::Done, _)) => Ok(()),
            answered => Err(self.launcher.error(self.sandbox, "end a command", answered)),
        }
    }
}

async fn wait_for_exit(mut exit: watch::Receiver<Option<Exit>>) {
    // A launcher that is gone has ended everything too.
    let _ = exit.wait_for(Option::is_some).await;
}

/// Three pipes: our ends and its ends.
fn pipes() -> io::Result<(Streams, Vec<OwnedFd>)> {
    let (input_theirs, input) = io::pipe()?;
    let (output, output_theirs) = io::pipe()?;
    let (error, error_theirs) = io::pipe()?;
    let streams = Streams::Pipes {
        input: Some(pipe::Sender::from_owned_fd(input.into())?),
        output: Some(pipe::Receiver::from_owned_fd(output.into())?),
        error: Some(pipe::Receiver::from_owned_fd(error.into())?),
    };
    let theirs = vec![
        input_theirs.into(),
        output_theirs.into(),
        error_theirs.into(),
    ];
    Ok((streams, theirs))
}

impl Streams {
    /// The next piece of either stream; nothing when both have ended.
    async fn read(&mut self) -> io::Result<Option<Output>> {
        match self {
            Self::Terminal(terminal) => read_terminal(terminal).await,
            Self::Pipes { output, error, .. } => loop {
                tokio::select! {
                    read = read_pipe(output) => match read? {
                        Some(bytes) => return Ok(Some(Output::Stdout(bytes))),
                        None => *output = None,
                    },
                    read = read_pipe(error) => match read? {
                        Some(bytes) => return Ok(Some(Output::Stderr(bytes))),
                        None => *error = None,
                    },
                    else => return Ok(None),
                }
                if output.is_none() && error.is_none() {
                    return Ok(None);
                }
            },
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Pipes {
                input: Some(input), ..
            } => input.write_all(bytes).await,
            Self::Terminal(Some(terminal)) => write_terminal(terminal, bytes).await,
            Self::Pipes { input: None, .. } | Self::Terminal(None) => {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
    }
}

async fn read_pipe(stream: &mut Option<pipe::Receiver>) -> io::Result<Option<Vec<u8>>> {
    let Some(stream) = stream else {
        return std::future::pending().await;
    };
    let mut bytes = vec![0; CHUNK];
    let length = stream.read(&mut bytes).await?;
    bytes.truncate(length);
    Ok((length > 0).then_some(bytes))
}

async fn read_terminal(terminal: &mut Option<AsyncFd<OwnedFd>>) -> io::Result<Option<Output>> {
    let Some(descriptor) = terminal else {
        return Ok(None);
    };
    let mut bytes = vec![0; CHUNK];
    let read = loop {
        let mut ready = descriptor.readable().await?;
        match ready.try_io(|descriptor| Ok(rustix::io::read(descriptor, &mut bytes)?)) {
            Ok(read) => break read,
            Err(_would_block) => {}
        }
    };
    match read {
        Ok(0) => *terminal = None,
        Ok(length) => {
            bytes.truncate(length);
            return Ok(Some(Output::Stdout(bytes)));
        }
        // How a terminal says that nobody has it open any more.
        Err(error) if error.raw_os_error() == Some(libc::EIO) => *terminal = None,
        Err(error) => return Err(error),
    }
    Ok(None)
}

async fn write_terminal(terminal: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut ready = terminal.writable().await?;
        match ready.try_io(|descriptor| Ok(rustix::io::write(descriptor, bytes)?)) {
            Ok(written) => bytes = bytes.get(written?..).unwrap_or_default(),
            Err(_would_block) => {}
        }
    }
    Ok(())
}

impl Child for ChildHandle {
    fn output(&mut self) -> BoxFuture<'_, Result<Option<Output>, SandboxError>> {
        Box::pin(async move {
            match self.next().await? {
                Some(output) => self.count(output).await.map(Some),
                None => Ok(None),
            }
        })
    }

    fn write<'a>(&'a mut self, bytes: &'a [u8]) -> BoxFuture<'a, Result<(), SandboxError>> {
        Box::pin(async move {
            self.streams
                .write(bytes)
                .await
                .map_err(|source| SandboxError::Engine {
                    sandbox: self.sandbox,
                    operation: "write to its input",
                    source: source.into(),
                })
        })
    }

    fn close_input(&mut self) -> BoxFuture<'_, Result<(), SandboxError>> {
        Box::pin(async move {
            match &mut self.streams {
                Streams::Pipes { input, .. } => *input = None,
                // The end-of-file character, as a person would type it.
                Streams::Terminal(Some(terminal)) => {
                    let _ = write_terminal(terminal, &[4]).await;
                }
                Streams::Terminal(None) => {}
            }
            Ok(())
        })
    }

    fn resize(&mut self, size: TerminalSize) -> BoxFuture<'_, Result<(), SandboxError>> {
        Box::pin(async move {
            if let Streams::Terminal(Some(terminal)) = &self.streams {
                let size = rustix::termios::Winsize {
                    ws_row: size.rows,
                    ws_col: size.columns,
                    ws_xpixel: 0,
                    ws_ypixel: 0,
                };
                rustix::termios::tcsetwinsize(terminal.get_ref(), size).map_err(|source| {
                    SandboxError::Engine {
                        sandbox: self.sandbox,
                        operation: "resize its terminal",
                        source: source.into(),
                    }
                })?;
            }
            Ok(())
        })
    }

    fn signal(&mut self, signal: i32) -> BoxFuture<'_, Result<(), SandboxError>> {
        Box::pin(async move {
            let ask = Ask::Signal {
                sandbox: self.sandbox,
                exec: self.exec,
                signal,
            };
            match self.launcher.shared.link.ask(ask, &[]).await {
                Ok((Answer::Done, _)) => Ok(()),
                answered => Err(self.launcher.error(self.sandbox, "send a signal", answered)),
            }
        })
    }

    fn wait(&mut self) -> BoxFuture<'_, Result<Exit, SandboxError>> {
        Box::pin(async move {
            let sandbox = self.sandbox;
            let exit = self.exit.wait_for(Option::is_some).await;
            let exit = exit.ok().and_then(|exit| *exit);
            let exit = exit.ok_or(SandboxError::Ended { sandbox })?;
            // It may have ended by itself before it could be ended.
            let limit = Limit::Output;
            Ok(if self.spent {
                Exit::Limit { limit }
            } else {
                exit
            })
        })
    }
}

impl Drop for ChildHandle {
    fn drop(&mut self) {
        if self.exit.borrow().is_none() {
            let signal = libc::SIGKILL;
            let ask = Ask::Signal {
                sandbox: self.sandbox,
                exec: self.exec,
                signal,
            };
            self.launcher.shared.link.tell(ask);
        }
    }
}
