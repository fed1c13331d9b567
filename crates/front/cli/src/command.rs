//! Every command, by noun and verb.

mod audit;
mod completions;
mod config;
mod demo;
mod dev;
mod init;
mod ledger;
mod person;
mod policy;
mod version;

use fluffy_report::ExitCode;

use crate::args::Command;
use crate::failure::{self, Failure};
use crate::session::Session;

/// How a command ends: with a code, or with something to report.
pub(crate) type Outcome = Result<ExitCode, Failure>;

/// Runs the command that was typed.
pub(crate) fn run(session: &Session, command: Command) -> Outcome {
    match command {
        Command::Demo => demo::run(session),
        Command::Init => init::run(session),
        Command::Policy(command) => policy::run(session, command),
        Command::Audit(command) => audit::run(session, command),
        Command::Config(command) => config::run(session, &command),
        Command::Dev(command) => dev::run(session, &command),
        Command::Version => version::run(session),
        Command::Completions { shell } => completions::run(session, shell),
        Command::Worker { kind } => Err(failure::unknown_worker(&kind).into()),
    }
}
