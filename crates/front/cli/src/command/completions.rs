//! `fluffy completions SHELL`.

use clap::CommandFactory;
use fluffy_report::ExitCode;

use crate::args::Cli;
use crate::command::Outcome;
use crate::session::Session;

/// Prints the completion script of a shell.
pub(crate) fn run(session: &Session, shell: clap_complete::Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "fluffy", &mut script);
    session.printer.raw(&script)?;
    Ok(ExitCode::Success)
}
