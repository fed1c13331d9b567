//! One door to set-up, tests, benchmarks and acceptance runs.
//!
//! CI calls `cargo xtask test` and nothing else. Never holds logic of the
//! product. Start with `args` for the commands and `suite` for the steps of
//! `test`; each step has a module of its own name.

mod accept;
mod args;
mod deny;
mod docs;
mod engines;
mod fuzz;
mod headers;
mod layers;
mod markdown;
mod output;
mod permits;
mod pictures;
mod portable;
mod process;
mod promises;
mod session;
mod setup;
mod step;
mod suite;
mod testing;
mod workspace;

use std::process::ExitCode;

use args::Task;
use step::Outcome;
use workspace::Workspace;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let task = match Task::parse(&arguments) {
        Ok(task) => task,
        Err(problem) => {
            output::complain(&problem);
            return ExitCode::from(2);
        }
    };
    match perform(&task) {
        Ok(outcome) => report(&outcome),
        Err(error) => {
            output::complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn perform(task: &Task) -> anyhow::Result<Outcome> {
    if let Task::Usage = task {
        output::line(args::USAGE);
        return Ok(Outcome::Passed(String::new()));
    }
    let workspace = Workspace::load()?;
    match task {
        Task::Usage => Ok(Outcome::Passed(String::new())),
        Task::Test { only } => Ok(suite::run_steps(&workspace, only)),
        Task::Accept { name } => accept::run_campaigns(&workspace, name.as_deref()),
        Task::Bench { area } => accept::bench(&workspace, area),
        Task::Fuzz { target, minutes } => fuzz::run_long(&workspace, target.as_deref(), *minutes),
        Task::WithPostgres { program, arguments } => testing::run_other(program, arguments),
        Task::WithEngines { program, arguments } => engines::run_other(program, arguments),
        Task::CheckLayers => layers::check(&workspace),
        Task::CheckPermits => permits::check(&workspace),
        Task::Docs => docs::build(&workspace),
        Task::Pictures => pictures::make(&workspace),
    }
}

fn report(outcome: &Outcome) -> ExitCode {
    match outcome {
        Outcome::Passed(note) => {
            output::line(note);
            ExitCode::SUCCESS
        }
        Outcome::Skipped(reason) => {
            output::line(&format!("skipped: {reason}"));
            ExitCode::SUCCESS
        }
        Outcome::Failed(reason) => {
            output::complain(reason);
            ExitCode::FAILURE
        }
    }
}
