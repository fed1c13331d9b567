//! `fluffy completions SHELL`, and what the shell then asks by tab.
//!
//! The script is short: it calls this program, which knows every command and,
//! for the platform, the names there are right now.

use std::process::ExitCode as ProcessCode;

use clap::CommandFactory;
use clap_complete::CompleteEnv;
use clap_complete::env::Shells;
use fluffy_report::{ExitCode, Report};

use crate::args::Cli;
use crate::command::Outcome;
use crate::session::Session;

/// The variable by which a shell asks.
const VARIABLE: &str = "_FLUFFY_COMPLETE";

/// Answers a shell that asks for completions; none if none does.
pub(crate) fn answer() -> Option<ProcessCode> {
    std::env::var_os(VARIABLE)?;
    let completer = CompleteEnv::with_factory(Cli::command).var(VARIABLE);
    let folder = std::env::current_dir().ok();
    // There is nobody to tell: a shell shows nothing but names.
    let _ = completer.try_complete(std::env::args_os(), folder.as_deref());
    Some(ExitCode::Success.into())
}

/// Prints the completion script of a shell.
pub(crate) fn run(session: &Session, shell: clap_complete::Shell) -> Outcome {
    let name = shell.to_string();
    let shells = Shells::builtins();
    let completer = shells.completer(&name).ok_or_else(|| {
        Report::new(
            ExitCode::Usage,
            format!("there are no completions for {name}"),
        )
        .fix("use bash, elvish, fish, powershell or zsh")
    })?;
    let mut script = Vec::new();
    let written = completer.write_registration(VARIABLE, "fluffy", "fluffy", "fluffy", &mut script);
    written.map_err(|error| {
        Report::from_error(ExitCode::Internal, &error).fix("please report this")
    })?;
    session.printer.raw(&script)?;
    Ok(ExitCode::Success)
}
