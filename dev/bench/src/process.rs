//! What needs another process: a policy extension's answer, and `fluffy` whole.
//!
//! The extension's worker is this program itself. `fluffy` is timed from
//! start to end, beside a program that does nothing, if it was built for
//! release too.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use fluffy_base::{Clock as _, SystemClock};
use fluffy_policy::extension::{Extensions as _, Opinion};
use fluffy_script::{ExtensionSource, Limits, ScriptHost, WorkerCommand};
use fluffy_test_kit::TestContext;

use crate::figure::{Bar, Figure, Samples, Show};
use crate::policy::request;

/// The argument that makes this program a worker.
pub(crate) const WORKER: &str = "--script-worker";

const EXTENSION: &str = "export function evaluate(request) { \
    return request.resource.endsWith(\".lock\") ? \"deny\" : \"pass\"; }";

/// 60 MiB, which is the bar of the specification.
const LARGEST: f64 = 60.0 * 1_048_576.0;

/// All figures with another process.
pub(crate) fn run() -> Result<Vec<Figure>> {
    let mut figures = vec![extension()?];
    let program = std::env::current_exe()?.with_file_name("fluffy");
    if program.is_file() {
        figures.push(size(&program)?);
        figures.extend(commands(program)?);
    } else {
        println!("skipped: there is no {}", program.display());
    }
    Ok(figures)
}

/// From the question to the answer of one extension.
fn extension() -> Result<Figure> {
    const CALLS: usize = 1_000;
    let command = WorkerCommand {
        program: std::env::current_exe()?,
        args: vec![WORKER.into()],
    };
    let source = ExtensionSource {
        name: "locks".to_owned(),
        source: EXTENSION.to_owned(),
    };
    let host = ScriptHost::start(
        command,
        vec![source],
        Limits::SPECIFIED,
        Arc::new(SystemClock),
    )?;
    let request = request("fs.write", "/Cargo.lock")?;
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let start = Instant::now();
        let answers = host.ask(&request, SystemClock.now());
        times.push(start.elapsed().as_secs_f64());
        let denied = matches!(answers.as_slice(), [answer] if answer.opinion == Opinion::Deny);
        ensure!(denied, "the extension answered {answers:?}");
    }
    Ok(Figure {
        what: "answer of a policy extension".to_owned(),
        ours: Samples::new(times, Show::Time),
        reference: None,
        bar: Bar::Inform,
    })
}

/// What a user downloads.
fn size(program: &Path) -> Result<Figure> {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
    let bytes = std::fs::metadata(program)?.len() as f64;
    Ok(Figure {
        what: "the one binary".to_owned(),
        ours: Samples::new(vec![bytes], Show::Size),
        reference: None,
        bar: Bar::BytesUnder(LARGEST),
    })
}

/// Whole runs of the command in a fresh project.
fn commands(program: PathBuf) -> Result<Vec<Figure>> {
    let context = TestContext::new(program)?;
    let set_up = context.run(&["init"])?;
    ensure!(
        set_up.code == Some(0),
        "fluffy init failed: {}",
        set_up.stderr
    );
    let cases: [(&[&str], f64); 2] = [
        (&["--version"], 10e-3),
        (&["policy", "explain", "fs.write", "/src/lib.rs"], 30e-3),
    ];
    let figure = |(arguments, limit): (&[&str], f64)| -> Result<Figure> {
        let (mut ours, mut reference) = (Vec::new(), Vec::new());
        for _ in 0..50 {
            ours.push(whole(context.command().args(arguments))?);
            reference.push(whole(&mut Command::new("true"))?);
        }
        let reference = Samples::new(reference, Show::Time);
        Ok(Figure {
            what: format!("fluffy {}", arguments.join(" ")),
            ours: Samples::new(ours, Show::Time),
            reference: Some(("true".to_owned(), reference)),
            bar: Bar::Under(limit),
        })
    };
    cases.into_iter().map(figure).collect()
}

/// Seconds from start to successful end.
fn whole(command: &mut Command) -> Result<f64> {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    let status = command
        .status()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(start.elapsed().as_secs_f64())
}
