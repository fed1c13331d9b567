//! The `fluffy` command: parse, run one command, end with its exit code.
//!
//! `args.rs` is what people type, `command/<noun>/<verb>.rs` is what happens,
//! `session.rs` is what every command stands on.

mod args;
mod built_in;
mod command;
mod failure;
mod kernel;
mod session;
mod worker;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::Parser;
use fluffy_report::{Format, PrintError, Printer, PrinterOptions, Report};

use crate::args::{Asked, Cli};
use crate::failure::Failure;
use crate::session::Session;

fn main() -> ExitCode {
    // Before anything else is set up: a worker must start with nothing.
    if let Some(code) = worker::run() {
        return code;
    }
    if let Some(code) = command::completions::answer() {
        return code;
    }
    let words = args::with_task(std::env::args_os().collect(), asked());
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let session = Session::new(&cli.global);
    match command::run(&session, cli.command) {
        Ok(code) => code,
        Err(failure) => end(&session.printer, &failure),
    }
}

/// Whether there is somebody to ask for a task.
fn asked() -> Asked {
    if io::stdin().is_terminal() && io::stdout().is_terminal() {
        Asked::Possible
    } else {
        Asked::Impossible
    }
}

/// Clap's own text: help goes to standard output and is a success.
fn usage(error: &clap::Error) -> ExitCode {
    let wants_json = std::env::args_os().any(|argument| argument == "--json");
    if wants_json && error.use_stderr() {
        let text = error.to_string();
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let what = lines.next().unwrap_or_default();
        let what = what.strip_prefix("error: ").unwrap_or(what);
        let report = Report::new(fluffy_report::ExitCode::Usage, what)
            .fix("run it with --help to see what it takes");
        let options = PrinterOptions {
            format: Format::Json,
            ..PrinterOptions::default()
        };
        Printer::new(options).report(&report);
        return report.exit().into();
    }
    // Nobody is left to tell when even this cannot be written.
    let _ = error.print();
    let code = if error.use_stderr() {
        fluffy_report::ExitCode::Usage
    } else {
        fluffy_report::ExitCode::Success
    };
    code.into()
}

fn end(printer: &Printer, failure: &Failure) -> ExitCode {
    match failure {
        Failure::Print(PrintError::Closed) => PrintError::Closed.exit().into(),
        Failure::Print(error) => {
            let report = Report::from_error(error.exit(), error)
                .fix("make room where the output goes, or send it elsewhere");
            printer.report(&report);
            report.exit().into()
        }
        Failure::Report(report) => {
            printer.report(report);
            report.exit().into()
        }
    }
}
