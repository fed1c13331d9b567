//! Running a program as a command, to its end or to one of its limits.
//!
//! Everything a program can wait for is inside one future with a deadline; a
//! loop without a call is ended by the engine's epoch. The result of a command
//! that was started is never an error. See `guest` for what it reaches.

use std::path::PathBuf;
use std::time::Instant;

use fluffy_base::Digest;
use wasmtime::{Engine, Store};
use wasmtime_wasi::I32Exit;

use crate::command::{Command, InvalidCommand};
use crate::guest::{self, Frame, Wasi};
use crate::output::Output;
use crate::program::CommandForm;
use crate::stop::Stop;
use crate::tier::Usage;

/// A finished command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// How it ended.
    pub ended: Ended,
    /// What it wrote to standard output, up to the limit.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error, up to the limit.
    pub stderr: Vec<u8>,
    /// What it used.
    pub usage: Usage,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this code.
    Exit {
        /// The code.
        code: i32,
    },
    /// It was stopped.
    Stopped(Stop),
}

/// Why a command did not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The permit is for something else.
    #[error("the permit is for `{action}`, and running a program needs `sandbox.exec`")]
    Permit {
        /// What it is for.
        action: String,
    },
    /// The program is no command.
    #[error("the program `{digest}` exports neither `_start` nor `wasi:cli/run`")]
    NotACommand {
        /// Which program.
        digest: Digest,
    },
    /// What it should be given can't be passed on.
    #[error("the command cannot be given to the program")]
    Command {
        /// Why not.
        #[source]
        source: InvalidCommand,
    },
    /// A directory it should reach can't be opened.
    #[error("the directory `{}` cannot be opened for the program", host.display())]
    Directory {
        /// Which, on the host.
        host: PathBuf,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The engine failed; nothing the program does leads here.
    #[error("the WASM engine failed")]
    Engine {
        /// How.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A command that is about to run.
pub(crate) struct Started {
    pub(crate) engine: Engine,
    pub(crate) frame: Frame,
    pub(crate) form: CommandForm,
    pub(crate) at: Instant,
}

impl Started {
    pub(crate) async fn finish(self, command: Command) -> Result<Finished, RunError> {
        let limits = self.frame.limits;
        let output = Output::new(limits.output);
        let system = guest::system(command, &output).map_err(|unopened| RunError::Directory {
            host: unopened.directory.host,
            source: unopened.source.into_boxed_dyn_error(),
        })?;
        let mut store: Store<Wasi> =
            self.frame
                .store(&self.engine, system)
                .map_err(|source| RunError::Engine {
                    source: source.into_boxed_dyn_error(),
                })?;
        let deadline = tokio::time::Instant::from_std(self.frame.deadline);
        let main = main(&self.form, &mut store);
        let ended = match tokio::time::timeout_at(deadline, main).await {
            Err(_) => Ended::Stopped(Stop::Deadline),
            Ok(Ok(code)) => Ended::Exit { code },
            Ok(Err(error)) => match (output.exceeded(), error.downcast_ref::<I32Exit>()) {
                (Some(stop), _) => Ended::Stopped(stop),
                (None, Some(I32Exit(code))) => Ended::Exit { code: *code },
                (None, None) => Ended::Stopped(guest::stop_of(&store, &error)),
            },
        };
        let usage = Usage::of(&store, &limits, self.at);
        let (stdout, stderr) = output.take();
        Ok(Finished {
            ended,
            stdout,
            stderr,
            usage,
        })
    }
}

async fn main(form: &CommandForm, store: &mut Store<Wasi>) -> wasmtime::Result<i32> {
    match form {
        CommandForm::Module(linked) => {
            let instance = linked.instantiate_async(&mut *store).await?;
            let start = instance.get_typed_func::<(), ()>(&mut *store, "_start")?;
            start.call_async(&mut *store, ()).await?;
            Ok(0)
        }
        CommandForm::Component(linked) => {
            let command = linked.instantiate_async(&mut *store).await?;
            let result = command.wasi_cli_run().call_run(&mut *store).await?;
            Ok(i32::from(result.is_err()))
        }
    }
}
