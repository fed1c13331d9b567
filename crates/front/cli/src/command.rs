//! Every command, by noun and verb.

mod agent;
mod audit;
mod channel;
pub(crate) mod completions;
mod config;
mod demo;
mod dev;
mod doctor;
mod gate;
mod init;
pub(crate) mod layer;
pub(crate) mod ledger;
pub(crate) mod person;
pub(crate) mod platform;
mod plugin;
pub(crate) mod policy;
pub(crate) mod recordings;
mod replay;
pub(crate) mod sandbox;
mod session;
mod streams;
pub(crate) mod terminal;
mod version;

use std::process;

use fluffy_report::ExitCode;

use crate::args::{Command, MachineRole, NodeCommand, SandboxCommand};
use crate::failure::{self, Failure};
use crate::session::Session;

/// How a command ends: with a code, or with something to report.
pub(crate) type Outcome = Result<ExitCode, Failure>;

/// Runs the command that was typed.
pub(crate) fn run(session: &Session, command: Command) -> Result<process::ExitCode, Failure> {
    let outcome = match command {
        // The only ones whose code is somebody else's.
        Command::Sandbox(SandboxCommand::Run(args)) => return Ok(sandbox::run(session, &args)),
        Command::Platform(command) if platform::exec::is_exec(&command) => {
            return Ok(platform::exec::run(session, &command));
        }
        Command::Task(args) => agent::task(session, &args),
        Command::Run(args) => agent::run(session, &args),
        Command::Replay(args) => replay::run(session, &args),
        Command::Acp(args) => agent::acp::run(session, &args),
        Command::Session(command) => session::run(session, command),
        Command::Demo(args) => demo::run(session, &args),
        Command::Init => init::run(session),
        Command::Channel(command) => channel::run(session, &command),
        Command::Context(command) => platform::context(session, command),
        Command::Up(args) => platform::up(session, &args),
        Command::Server(args) => platform::server(session, &args),
        Command::Node(command) => platform::node(session, command),
        Command::Image(command) => platform::image(session, command),
        Command::Ledger(command) => platform::ledger(session, command),
        Command::Manifest(command) => platform::manifest(session, command),
        Command::Platform(command) => platform::run(session, &command),
        Command::Plugin(command) => plugin::run(session, command),
        Command::Policy(command) => policy::run(session, command),
        Command::Audit(command) => audit::run(session, command),
        Command::Config(command) => config::run(session, &command),
        Command::Dev(command) => dev::run(session, &command),
        Command::Version => version::run(session),
        Command::Completions { shell } => completions::run(session, shell),
        Command::Doctor { role: None } => doctor::run(session),
        Command::Doctor {
            role: Some(MachineRole::Node),
        } => platform::node(session, NodeCommand::doctor()),
        Command::Sandbox(SandboxCommand::Selftest(args)) => sandbox::selftest(session, &args),
        Command::Worker { kind, .. } => Err(failure::unknown_worker(&kind).into()),
        Command::Layer(command) => layer::run(session, command),
    };
    outcome.map(Into::into)
}
