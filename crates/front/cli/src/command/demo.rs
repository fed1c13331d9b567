//! `fluffy demo`: a recorded model works on a real repository, under real rules.
//!
//! Only the model's answers are recorded. The kernel, policy, sandboxes, tests,
//! merge, commit and ledger are the ones that every task has, and so is the
//! platform that serves what was merged: each step is this very program (or
//! git) run in a folder that is removed at the end, on Ctrl-C as well. Never
//! reads or writes anything of the person's own. Next: `stage`.

mod refusals;
mod served;
mod stage;

use std::path::Path;

use fluffy_report::{ExitCode, Report, Text, Tone};
use serde_json::{Value, json};

use crate::args::DemoArgs;
use crate::command::Outcome;
use crate::failure::{self, Failure};
use crate::session::Session;
use stage::{Ran, Stage};

/// What is said before the first act.
const OPENING: &str = "\
A model gets a task in a small repository. What it says was recorded, so there
is no key and no network. Everything else is real: the kernel, the policy, the
sandboxes, the tests, git, the ledger, and the platform that serves the result.
";

/// What is said after the last.
const CLOSING: &str = "
That was all real, and it is gone again. In a project of yours:
  fluffy init                       a policy to read and change
  fluffy \"make the tests pass\" --model PROVIDER/MODEL
  fluffy up                         then `fluffy launch`: what was merged runs
  fluffy audit verify               nobody touched the record
";

/// Plays the demo.
pub(crate) fn run(session: &Session, args: &DemoArgs) -> Outcome {
    let recording = match &args.recording {
        Some(path) => {
            std::fs::read_to_string(path).map_err(|error| failure::unreadable(path, &error))?
        }
        None => stage::RECORDING.to_owned(),
    };
    let stage = Stage::set(session, &recording)?;
    let played = play(&stage);
    let interrupted = stage.interrupted();
    let ended = stage.end();
    if interrupted {
        return Err(Report::new(ExitCode::Failure, "interrupted")
            .code("interrupted")
            .why("everything that the demo made was ended and removed")
            .fix("start it again when you like")
            .into());
    }
    let shown = played?;
    ended?;
    if session.json() {
        session.printer.json(&shown)?;
    } else {
        say(session, CLOSING)?;
    }
    Ok(ExitCode::Success)
}

/// All acts; what they came to, for programs.
fn play(stage: &Stage<'_>) -> Result<Value, Failure> {
    let session = stage.session;
    say(session, OPENING)?;
    if let Some(why) = &stage.reduced {
        let words = format!(
            "Reduced isolation: {why}, so the demo asks for Landlock, seccomp and limits \
             alone. They cannot hide a file from commands, so there is no secret to \
             hide. `fluffy doctor` says what more would take."
        );
        let mut text = Text::new();
        text.plain("\n");
        text.paragraph(Tone::Caution, &words, (0, 80));
        show(session, &text)?;
    }
    repository(stage)?;
    work(stage)?;
    let commit = commit(stage)?;
    let (events, tampered) = ledger(stage)?;
    let served = served::play(stage)?;
    Ok(json!({
        "v": 1, "type": "demo.ended", "verified": true, "commit": commit,
        "ledger": "sound", "events": events, "tampering": tampered, "served": served,
        "isolation": if stage.reduced.is_some() { "reduced" } else { "shared-kernel" },
    }))
}

/// Act 1: what there is, and what is wrong with it.
fn repository(stage: &Stage<'_>) -> Result<(), Failure> {
    let title = match stage.reduced {
        None => "A repository with a bug, a test suite and a secret",
        Some(_) => "A repository with a bug and a test suite",
    };
    act(stage, 1, title)?;
    command(stage.session, "ls -A")?;
    let files = stage.shell("ls -A")?.stdout;
    let files: Vec<&str> = files.lines().collect();
    block(stage.session, Tone::Plain, &files.join("  "))?;
    let printed = stage.shell(". ./slug.sh; slug 'Hello, World!'")?;
    command(stage.session, "slug 'Hello, World!'")?;
    block(stage.session, Tone::Bad, printed.stdout.trim_end())
}

/// Act 2: the model works, and tries what it may not do.
fn work(stage: &Stage<'_>) -> Result<(), Failure> {
    act(stage, 2, "The model works, and tries what it may not do")?;
    command(stage.session, "fluffy replay session.jsonl")?;
    say(stage.session, "")?;
    match stage.fluffy_shown(&["replay", "session.jsonl"])? {
        Some(0) => Ok(()),
        code => {
            let code = code.map_or_else(|| "a signal".to_owned(), |code| format!("code {code}"));
            let what = "the demo's task did not end verified";
            Err(Report::new(ExitCode::Unverified, what)
                .code("unverified")
                .why(format!("the replay ended with {code}; see above"))
                .fix("please report this with the output above")
                .into())
        }
    }
}

/// Act 3: what the person has of it.
fn commit(stage: &Stage<'_>) -> Result<String, Failure> {
    act(stage, 3, "What is in the repository now")?;
    command(stage.session, "git log -1 --stat")?;
    let format = "--format=%s%n%n%(trailers)";
    let log = stage.git(&["log", "-1", "--stat=76", format])?;
    let mut lines: Vec<&str> = log.stdout.trim_end().lines().collect();
    lines.dedup();
    block(stage.session, Tone::Plain, &lines.join("\n"))?;
    let printed = stage.shell(". ./slug.sh; slug 'Hello, World!'")?;
    command(stage.session, "slug 'Hello, World!'")?;
    block(stage.session, Tone::Good, printed.stdout.trim_end())?;
    let commit = stage.git(&["rev-parse", "HEAD"])?;
    Ok(commit.stdout.trim_end().to_owned())
}

/// Act 4: the record of it, and what becomes of a lie.
fn ledger(stage: &Stage<'_>) -> Result<(u64, String), Failure> {
    act(stage, 4, "What the ledger says of it")?;
    let export = stage.fluffy(&["audit", "export"])?.stdout;
    show(stage.session, &refusals::shown(&export))?;
    command(stage.session, "fluffy audit verify")?;
    let sound = stage.fluffy(&["audit", "verify", "--json"])?;
    let sound: Value = serde_json::from_str(&sound.stdout).unwrap_or_default();
    let events = sound.get("events").and_then(Value::as_u64);
    let events = events.ok_or_else(|| odd("the ledger was not verified"))?;
    let words = format!("sound: {events} events, each hashed with the one before, and signed");
    block(stage.session, Tone::Good, &words)?;
    Ok((events, tamper(stage, &export)?))
}

/// One word is changed in a copy; that must be found.
fn tamper(stage: &Stage<'_>, export: &str) -> Result<String, Failure> {
    const DENY: &str = "\"decision\":\"deny\"";
    const ALLOW: &str = "\"decision\":\"allow\"";
    let file = stage.write("changed.jsonl", &export.replacen(DENY, ALLOW, 1))?;
    say(
        stage.session,
        "\n  Somebody turns one deny into an allow, in a copy:\n",
    )?;
    command(stage.session, "fluffy audit verify --ledger changed.jsonl")?;
    let found = verify_copy(stage, &file)?;
    block(stage.session, Tone::Bad, &found)?;
    Ok(found)
}

fn verify_copy(stage: &Stage<'_>, file: &Path) -> Result<String, Failure> {
    let path = file.to_string_lossy();
    let Ran { code, stdout, .. } =
        stage.ran(&["audit", "verify", "--json", "--ledger", path.as_ref()])?;
    let said: Value = serde_json::from_str(&stdout).unwrap_or_default();
    let seq = said.pointer("/finding/seq").and_then(Value::as_u64);
    let detail = said.pointer("/finding/detail").and_then(Value::as_str);
    match (code, seq, detail) {
        (Some(7), Some(seq), Some(detail)) => Ok(format!("BROKEN at event {seq}: {detail}")),
        _ => Err(odd("a changed ledger was not found out")),
    }
}

/// Something of ours is not as it must be.
fn odd(what: &str) -> Failure {
    Report::new(ExitCode::Internal, what)
        .fix("please report this with the output above")
        .into()
}

fn act(stage: &Stage<'_>, number: u8, title: &str) -> Result<(), Failure> {
    let mut text = Text::new();
    text.plain("\n");
    text.add(Tone::Strong, &format!("{number}. {title}"));
    text.plain("\n\n");
    show(stage.session, &text)
}

/// A command as a person would type it.
fn command(session: &Session, words: &str) -> Result<(), Failure> {
    let mut text = Text::new();
    text.add(Tone::Dim, "  $ ").add(Tone::Strong, words);
    text.plain("\n");
    show(session, &text)
}

/// What came of it.
fn block(session: &Session, tone: Tone, words: &str) -> Result<(), Failure> {
    let mut text = Text::new();
    for line in words.lines() {
        let line = format!("  {line}");
        text.add(tone, line.trim_end()).plain("\n");
    }
    show(session, &text)
}

fn say(session: &Session, words: &str) -> Result<(), Failure> {
    let mut text = Text::new();
    text.plain(words);
    if words.is_empty() {
        text.plain("\n");
    }
    show(session, &text)
}

/// Only people read the play.
fn show(session: &Session, text: &Text) -> Result<(), Failure> {
    match session.json() {
        true => Ok(()),
        false => Ok(session.printer.text(text)?),
    }
}
