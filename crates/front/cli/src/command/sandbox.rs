//! `fluffy sandbox …`: run commands in isolation, and test the isolation.
//!
//! Nothing here isolates: `fluffy_sandbox` does, behind a launcher process.
//! Start with `run` for the order of things, `pump` for the streams.

mod ending;
pub(crate) mod ground;
mod outside;
mod pump;
mod run;
mod selftest;
mod wasm;

use std::collections::BTreeMap;
use std::process::ExitCode;

use fluffy_report::Report;
use fluffy_sandbox::protocol;
use serde_json::{Value, json};

use crate::args::{RunArgs, SelftestArgs};
use crate::command::Outcome;
use crate::failure::Failure;
use crate::session::Session;

/// There was no sandbox, or nothing was permitted to run in it.
const NO_SANDBOX: u8 = 125;

/// Runs a command in a sandbox; the code is the command's own.
pub(crate) fn run(session: &Session, args: &RunArgs) -> ExitCode {
    match run::run(session, args) {
        Ok(code) => code.into(),
        Err(failure) => {
            tell(session, &failure);
            NO_SANDBOX.into()
        }
    }
}

/// Tries the corpus of escapes on this machine.
pub(crate) fn selftest(session: &Session, args: &SelftestArgs) -> Outcome {
    selftest::run(session, args)
}

/// The variables that say where container engines are.
pub(crate) fn containers() -> BTreeMap<String, String> {
    ["CONTAINER_HOST", "DOCKER_HOST", "XDG_RUNTIME_DIR"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)))
        .collect()
}

/// Who we are, as engines count it.
pub(crate) fn user() -> u32 {
    rustix::process::getuid().as_raw()
}

/// A failure of an engine, for people.
fn no_engine(failure: &protocol::Failure) -> Report {
    let report = Report::new(fluffy_report::ExitCode::Failure, failure.what.clone())
        .code("no_sandbox")
        .why(failure.why.clone());
    match &failure.fix {
        Some(fix) => report.fix(fix.clone()),
        None => report.fix("`fluffy doctor` says what this machine can do"),
    }
}

/// Says why nothing was run.
pub(crate) fn tell(session: &Session, failure: &Failure) {
    let report = match failure {
        Failure::Report(report) => (**report).clone(),
        Failure::Print(error) => Report::from_error(error.exit(), error),
    };
    if !session.json() {
        session.printer.report(&report);
        return;
    }
    let mut value = report.to_json();
    if let Some(Value::Object(error)) = value.get_mut("error") {
        error.insert("exit".to_owned(), json!(NO_SANDBOX));
    }
    session.printer.json_talk(&value);
}
