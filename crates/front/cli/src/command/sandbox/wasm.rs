//! `fluffy sandbox run --tier wasm`: a WebAssembly program and its streams.
//!
//! It reaches nothing else: no directory, no variable, no network. So there is
//! no layer and nothing to merge. What it reads is read before it starts, what
//! it writes is written when it has ended.

use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::time::Duration;

use fluffy_base::ByteSize;
use fluffy_base::id::SandboxId;
use fluffy_ledger::{Aggregate, Domain, Draft, Ledger};
use fluffy_policy::Context;
use fluffy_policy::word::Tier;
use fluffy_report::{ExitCode, Report};
use fluffy_wasm::{
    Bounds, Command, Ended, Finished, Limits, PrepareError, RunError, StartTierError, Stop,
    WasmTier,
};
use serde_json::{Value, json};

use crate::args::RunArgs;
use crate::command::gate::{Desk, Yes};
use crate::command::ledger;
use crate::failure::{self, Failure};
use crate::session::Session;

/// The template whose time and output it gets.
const TEMPLATE: &str = "code-executor";
/// What it may use where nothing else is said.
const TIME: Duration = Duration::from_secs(300);
const MEMORY: ByteSize = ByteSize(1 << 30);
const OUTPUT: ByteSize = ByteSize(16 << 20);
/// The most that is read for its standard input.
const INPUT: u64 = 64 << 20;

/// Runs the program; gives the code to exit with.
pub(super) fn run(session: &Session, args: &RunArgs) -> Result<u8, Failure> {
    check(args)?;
    let here = session.here()?;
    let bytes = read_program(session, args)?;
    let opened = ledger::open(session, here)?;
    let done = Desk::open(here, &opened).and_then(|desk| {
        let sandbox = SandboxId::generate();
        let finished = execute(&desk, &opened.ledger, args, sandbox, &bytes)?;
        Ok((sandbox, finished))
    });
    ledger::close(session, opened)?;
    let (sandbox, finished) = done?;
    // Nobody is left to tell when these cannot be written.
    let _ = io::stdout().write_all(&finished.stdout);
    let _ = io::stdout().flush();
    let _ = io::stderr().write_all(&finished.stderr);
    let (code, exit) = ending(&finished.ended);
    if session.json() {
        let took = u64::try_from(finished.usage.took.as_millis()).unwrap_or(u64::MAX);
        session.printer.json_talk(&json!({
            "code": code,
            "exit": exit,
            "sandbox": sandbox,
            "template": TEMPLATE,
            "tier": "wasm",
            "engine": "wasmtime",
            "took_ms": took,
            "layer": {"state": "empty"},
        }));
    } else if let Ended::Stopped(stop) = &finished.ended {
        session.printer.warn(&format!("ended: {stop}"));
    }
    Ok(code)
}

/// What a program without files and hosts cannot be given.
fn check(args: &RunArgs) -> Result<(), Failure> {
    let meant = [
        ("--allow", !args.allow.is_empty()),
        ("--write", !args.write.is_empty()),
        ("--merge", args.aftermath.merge),
        ("--image", args.image.is_some()),
        ("--engine", args.engine.is_some()),
        ("--template", args.template.is_some()),
    ];
    match meant.into_iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(Report::new(
            ExitCode::Usage,
            format!("`{flag}` means nothing in tier wasm"),
        )
        .why("a WebAssembly program here has its streams and arguments, and nothing else")
        .fix("leave it out, or use `--tier process`")
        .into()),
        None => Ok(()),
    }
}

fn read_program(session: &Session, args: &RunArgs) -> Result<Vec<u8>, Failure> {
    let name = args.command.first().map_or("", String::as_str);
    let path = session.folder()?.join(Path::new(name));
    let unreadable = |error: &io::Error| Failure::from(failure::unreadable(&path, error));
    let file = std::fs::File::open(&path).map_err(|error| unreadable(&error))?;
    let most = Bounds::default().size.0;
    let mut bytes = Vec::new();
    // One byte more is enough to be told that it is too large.
    file.take(most.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable(&error))?;
    Ok(bytes)
}

fn execute(
    desk: &Desk,
    ledger: &Ledger,
    args: &RunArgs,
    sandbox: SandboxId,
    bytes: &[u8],
) -> Result<Finished, Failure> {
    let context = Context {
        template: Some(TEMPLATE.to_owned()),
        tier: Some(Tier::Wasm),
        ..Context::default()
    };
    let desk = desk.inside(sandbox);
    let request = desk.request("shell.exec", None, &context);
    let permit = desk.permit(&request, Yes::from_flag(args.yes))?.permit;
    let tier = WasmTier::start(Bounds::default()).map_err(|error| no_tier(&error))?;
    let program = tier.prepare(bytes).map_err(|error| no_program(&error))?;
    let facts = json!({
        "decision": permit.decision_id().to_string(),
        "program": program.digest(),
        "tier": "wasm",
    });
    let aggregate = Aggregate::new("sandbox", sandbox.to_string());
    let draft = Draft::new(Domain::Agent, aggregate, "sandbox.command", desk.actor());
    ledger.record(draft.payload(facts)).map_err(|error| {
        let fix = "make room on the disk of the state directory";
        Failure::of(ExitCode::Internal, &error, fix)
    })?;
    let command = Command {
        arguments: args.command.clone(),
        stdin: read_input()?,
        limits: Limits {
            fuel: None,
            time: args
                .time
                .map_or(TIME, |span| Duration::from(span).min(TIME)),
            memory: MEMORY,
            output: args.output.unwrap_or(OUTPUT),
            ..Limits::default()
        },
        ..Command::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failure::no_threads(&error))?;
    let finished = runtime.block_on(tier.run(permit, &program, command));
    Ok(finished.map_err(|error| not_run(&error))?)
}

/// All of standard input, unless a person would have to type it.
fn read_input() -> Result<Vec<u8>, Failure> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Ok(Vec::new());
    }
    let mut bytes = Vec::new();
    let read = stdin.lock().take(INPUT + 1).read_to_end(&mut bytes);
    read.map_err(|error| failure::unreadable(Path::new("/dev/stdin"), &error))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > INPUT {
        return Err(
            Report::new(ExitCode::Usage, "the input is too large for tier wasm")
                .why(format!("it reads at most {}", ByteSize(INPUT)))
                .fix("use `--tier process`, which reads as it goes")
                .into(),
        );
    }
    Ok(bytes)
}

/// The code to exit with, and the reason in the words of the other tiers.
fn ending(ended: &Ended) -> (u8, Value) {
    let limit = |code: u8, limit: &str| (code, json!({"type": "limit", "limit": limit}));
    match ended {
        Ended::Exit { code } => {
            let number = u8::try_from(code & 0xff).unwrap_or(u8::MAX);
            (number, json!({"type": "code", "code": code}))
        }
        Ended::Stopped(Stop::Deadline | Stop::Fuel) => limit(124, "time"),
        Ended::Stopped(Stop::Memory { .. } | Stop::Table { .. }) => limit(137, "memory"),
        Ended::Stopped(Stop::Output { .. }) => limit(137, "output"),
        // What a native program does when it finds itself broken.
        Ended::Stopped(Stop::Trapped(_) | Stop::Host { .. } | Stop::Asks { .. }) => {
            (134, json!({"type": "signal", "signal": 6}))
        }
    }
}

fn no_tier(error: &StartTierError) -> Report {
    Report::from_error(ExitCode::Failure, error)
        .code("no_sandbox")
        .fix("`fluffy doctor` says what this machine can do")
}

fn no_program(error: &PrepareError) -> Report {
    Report::from_error(ExitCode::Usage, error)
        .code("no_sandbox")
        .fix("build it for the target wasm32-wasip1 or wasm32-wasip2")
}

fn not_run(error: &RunError) -> Report {
    Report::from_error(ExitCode::Failure, error)
        .code("no_sandbox")
        .fix("build it as a command: with a `main`, for wasm32-wasip1 or wasm32-wasip2")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_other_tiers() {
        for (ended, code) in [
            (Ended::Exit { code: 3 }, 3),
            (Ended::Stopped(Stop::Deadline), 124),
            (Ended::Stopped(Stop::Output { limit: OUTPUT }), 137),
            (Ended::Stopped(Stop::Memory { limit: MEMORY }), 137),
        ] {
            assert_eq!(ending(&ended).0, code, "{ended:?}");
        }
    }
}
