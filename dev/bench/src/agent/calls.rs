//! From the command line to the model, and what each call of a tool costs.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use fluffy_model_server::Reply;
use fluffy_test_kit::{EngineKind, TestEngine};
use serde_json::json;

use super::bed::Bed;
use super::time;
use crate::figure::{Bar, Figure, Samples, Show};

const STARTS: usize = 10;
const CALLS: usize = 100;
const TESTS: usize = 20;

/// From `fluffy run` to the first request at the model's server.
pub(super) fn start() -> Result<Vec<Figure>> {
    let bed = Bed::new(&[])?;
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        bed.rest()?;
        for times in [&mut cold, &mut warm] {
            let ran = bed.run(Vec::new())?;
            let first = ran.asked.first().context("the model was never asked")?;
            times.push(first.duration_since(ran.began).as_secs_f64());
        }
    }
    Ok(vec![
        time("`fluffy run` to the first model request", cold, Bar::Inform),
        time("the same while the kernel runs", warm, Bar::Inform),
    ])
}

/// What calls cost, everything of ours included.
pub(super) fn overhead() -> Result<Vec<Figure>> {
    let bed = Bed::new(&[])?;
    let read = Reply::call("fs.read", json!({"path": "src/code.txt"}));
    let shell = Reply::call("shell.exec", json!({"command": "true"}));
    let plan = Reply::call("plan.complete", json!({"summary": "write and test"}));
    let test = Reply::call("test.run", json!({}));
    let mut replies = vec![read; CALLS];
    replies.extend(vec![shell; CALLS]);
    replies.push(plan);
    replies.extend((0..CALLS).map(write));
    replies.extend(vec![test; TESTS]);
    let ran = bed.run(replies)?;
    ensure!(ran.asked.len() > 3 * CALLS, "it ended too early");
    let mut outside = (Vec::new(), Vec::new());
    for _ in 0..CALLS {
        outside.0.push(by_hand(&bed, &["-c", "true"])?);
    }
    for _ in 0..TESTS {
        outside.1.push(by_hand(&bed, &["tests/run.sh"])?);
    }
    let beside = |what: &str, tool: &str, seconds: Vec<f64>, bar| -> Result<Figure> {
        Ok(Figure {
            reference: Some((
                "outside of any sandbox".to_owned(),
                Samples::new(seconds, Show::Time),
            )),
            ..time(what, ran.calls(tool)?, bar)
        })
    };
    let mut turns = ran.turns();
    turns.truncate(CALLS - 1);
    Ok(vec![
        time("native read", ran.calls("fs.read")?, Bar::Under(1e-3)),
        time(
            "a turn with one read, request to request",
            turns,
            Bar::Inform,
        ),
        beside(
            "`true` in a sandbox over the layer",
            "shell.exec",
            outside.0,
            Bar::Under(15e-3),
        )?,
        time(
            "the same, the slowest",
            ran.calls("shell.exec")?,
            Bar::AllUnder(50e-3),
        ),
        time(
            "write a file in a sandbox over the layer",
            ran.calls("fs.write")?,
            Bar::Under(15e-3),
        ),
        time(
            "the same, the slowest",
            ran.calls("fs.write")?,
            Bar::AllUnder(50e-3),
        ),
        beside(
            "run two trivial tests in a layer of their own",
            "test.run",
            outside.1,
            Bar::Inform,
        )?,
    ])
}

/// What calls into a session's container cost.
pub(super) fn contained() -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for kind in [EngineKind::Docker, EngineKind::Podman] {
        let TestEngine::At(socket) = kind.for_tests()? else {
            continue;
        };
        let bed = Bed::contained(&socket)?;
        let shell = Reply::call("shell.exec", json!({"command": "true"}));
        let plan = Reply::call("plan.complete", json!({"summary": "write and test"}));
        let test = Reply::call("test.run", json!({}));
        // The first call makes the container.
        let mut replies = vec![shell; CALLS + 1];
        replies.push(plan);
        replies.extend((0..CALLS).map(write));
        replies.extend(vec![test; TESTS / 4]);
        let ran = bed.run(replies)?;
        ensure!(ran.asked.len() > 2 * CALLS, "it ended too early");
        let name = kind.name();
        let mut shells = ran.calls("shell.exec")?;
        let first = shells.remove(0);
        let writes = ran.calls("fs.write")?;
        let run = format!("`true` in the session's {name} container");
        let wrote = format!("write a file in the session's {name} container");
        let tested = format!("run two trivial tests in {name} containers of their own");
        let slowest = "the same, the slowest";
        figures.extend([
            time(run, shells.clone(), Bar::Under(15e-3)),
            time(slowest, shells, Bar::AllUnder(50e-3)),
            time("the first, which makes it", vec![first], Bar::Inform),
            time(wrote, writes.clone(), Bar::Under(15e-3)),
            time(slowest, writes, Bar::AllUnder(50e-3)),
            time(tested, ran.calls("test.run")?, Bar::Inform),
        ]);
    }
    Ok(figures)
}

/// A change of a test file.
fn write(at: usize) -> Reply {
    let content = format!("grep -q first src/code.txt # {at}\n");
    Reply::call(
        "fs.write",
        json!({"path": "tests/second.t", "content": content}),
    )
}

/// Seconds of the same command outside of everything.
fn by_hand(bed: &Bed, words: &[&str]) -> Result<f64> {
    let begun = Instant::now();
    let status = Command::new("sh")
        .current_dir(bed.context.project())
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .context("cannot run sh")?;
    ensure!(status.success(), "`sh {words:?}` failed");
    Ok(begun.elapsed().as_secs_f64())
}
