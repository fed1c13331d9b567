//! `fluffy plugin dev`: runs a plugin from its folder, reloads it when it
//! changes, and shows every decision about it and everything it says.
//!
//! Rebuilding is the author's; this only looks at the folder. A change that
//! does not start keeps the one that runs. Next: `bench` for where it runs.

use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fluffy_contract::tool::ToolOutcome;
use fluffy_kernel::agent::explain;
use fluffy_plugin_host::plugins::Alone;
use fluffy_plugin_host::shelf::Placed;
use fluffy_plugin_host::{Gone, log};
use fluffy_policy::Verdict;
use fluffy_report::ExitCode;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::bench::{Bench, capability, check_grant};
use super::examined;
use super::host::runtime;
use crate::command::{Outcome, ledger};
use crate::failure::{self, Failure};
use crate::session::Session;

/// Between two looks at the folder, the log and the ledger.
const LOOK: Duration = Duration::from_millis(250);

/// How long the old one may take to end.
const GRACE: Duration = Duration::from_secs(2);

/// The most files that are looked at.
const MAX_FILES: usize = 50_000;

/// Runs the plugin in a folder until somebody ends it, or for one call.
pub(super) fn run(session: &Session, folder: &Path, grant: &[String], call: &[String]) -> Outcome {
    let here = session.here()?;
    check_grant(grant)?;
    let paths = here.paths.create();
    paths.map_err(|error| failure::paths(&error))?;
    let opened = ledger::open(session, here)?;
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        let bench = Bench::open(session, here, &opened, grant).await?;
        let mut dev = Develop::new(session, &bench, folder);
        let ended = match call {
            [tool, arguments] => dev.one_call(tool, arguments).await,
            _ => dev.until_ended().await,
        };
        if let Some(running) = dev.running.take() {
            running.alone.connection().stop(GRACE).await;
        }
        ended
    });
    runtime.shutdown_background();
    ledger::close(session, opened)?;
    ended
}

struct Develop<'a> {
    session: &'a Session,
    bench: &'a Bench,
    folder: &'a Path,
    running: Option<Running>,
    /// The folder as it was when it was last tried, and as it was just now.
    tried: Vec<Seen>,
    seen: Vec<Seen>,
    since: u64,
    lines: usize,
    /// Whose decisions and lines are shown: its name and its home.
    of: Option<(String, PathBuf)>,
}

struct Running {
    alone: Arc<Alone>,
    placed: Placed,
}

/// A file, as far as a look tells.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    path: PathBuf,
    changed: Option<SystemTime>,
    size: u64,
}

impl<'a> Develop<'a> {
    fn new(session: &'a Session, bench: &'a Bench, folder: &'a Path) -> Self {
        let seen = look_at(folder);
        Self {
            session,
            bench,
            folder,
            running: None,
            tried: seen.clone(),
            seen,
            since: bench.now(),
            lines: 0,
            of: None,
        }
    }

    async fn one_call(&mut self, tool: &str, arguments: &str) -> Outcome {
        let placed = self.bench.place(self.folder);
        let placed = placed.map_err(|error| examined(&error))?;
        let started = self.start(placed).await;
        self.show()?;
        started.map_err(|why| {
            let report = fluffy_report::Report::new(ExitCode::Failure, "the plugin does not start");
            report
                .why(why)
                .fix("`fluffy plugin test` says what is wrong with it")
        })?;
        let outcome = self.call(tool, arguments).await?;
        let _ = self.bench.now();
        self.show()?;
        Ok(match outcome {
            ToolOutcome::Done => ExitCode::Success,
            ToolOutcome::Failed => ExitCode::Failure,
        })
    }

    /// Goes on until a signal, or the end of what is typed.
    async fn until_ended(&mut self) -> Outcome {
        let no_signals = |error| failure::no_threads(&error);
        let mut interrupts = signal(SignalKind::interrupt()).map_err(no_signals)?;
        let mut terminations = signal(SignalKind::terminate()).map_err(no_signals)?;
        tokio::select! {
            _ = interrupts.recv() => {}
            _ = terminations.recv() => {}
            ended = self.turns() => ended?,
        }
        Ok(ExitCode::Success)
    }

    /// One thing after the other: what is typed, and what changed meanwhile.
    async fn turns(&mut self) -> Result<(), Failure> {
        let mut typed = lines();
        self.reload().await?;
        let hint = "type `TOOL {\"an\": \"argument\"}` to call a tool; ctrl-C ends";
        self.session.printer.note(hint);
        loop {
            tokio::select! {
                line = typed.recv() => match line.as_deref().map(str::trim) {
                    Some("") => {}
                    Some(line) => {
                        let (tool, arguments) = line.split_once(' ').unwrap_or((line, "{}"));
                        self.call(tool, arguments).await?;
                    }
                    None => return Ok(()),
                },
                () = tokio::time::sleep(LOOK) => self.look().await?,
            }
        }
    }

    /// Shows what is new, and reloads when the folder came to rest.
    async fn look(&mut self) -> Result<(), Failure> {
        self.show()?;
        self.notice_its_end().await?;
        let now = look_at(self.folder);
        let is_at_rest = now == self.seen;
        self.seen = now;
        if is_at_rest && self.seen != self.tried {
            self.reload().await?;
        }
        Ok(())
    }

    /// Puts what the folder holds now in the place of what runs.
    async fn reload(&mut self) -> Result<(), Failure> {
        self.tried.clone_from(&self.seen);
        let placed = match self.bench.place(self.folder) {
            Ok(placed) => placed,
            Err(error) => return self.kept(&explain(&error)),
        };
        let digest = placed.record.pin.digest;
        let running = self.running.as_ref();
        if running.is_some_and(|running| running.placed.record.pin.digest == digest) {
            self.bench.discard(&placed);
            return Ok(());
        }
        let can_run_twice = placed.manifest.lifecycle.hot_reload;
        let old = self.running.take();
        if let (Some(old), false) = (&old, can_run_twice) {
            old.alone.connection().stop(GRACE).await;
        }
        let started = self.start(placed.clone()).await;
        self.show()?;
        let Err(why) = started else {
            if let Some(old) = old {
                old.alone.connection().stop(GRACE).await;
                self.bench.discard(&old.placed);
            }
            return Ok(());
        };
        self.bench.discard(&placed);
        match old {
            Some(old) if can_run_twice => self.running = Some(old),
            Some(old) => {
                // Where it does not start either, nothing runs.
                let _ = self.start(old.placed).await;
            }
            None => {}
        }
        self.kept(&why)
    }

    fn kept(&self, why: &str) -> Result<(), Failure> {
        let what = match self.running {
            Some(_) => "the one before runs on",
            None => "nothing runs until it changes",
        };
        let value = json!({"event": "refused", "why": why, "then": what});
        self.tell(&value, &format!("refused  {why}; {what}"))
    }

    async fn start(&mut self, placed: Placed) -> Result<(), String> {
        let manifest = &placed.manifest;
        self.of = Some((manifest.name.clone(), placed.home.clone()));
        let fits = self.bench.plugins.fits(manifest);
        fits.map_err(|misfit| misfit.to_string())?;
        let started = self.bench.plugins.start_alone(&placed).await;
        let alone = started.map_err(|error| explain(&error))?;
        let tools = alone.connection().tools();
        let tools: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        let (name, version) = (&manifest.name, &manifest.version);
        let value = json!({
            "event": "running", "plugin": name, "version": version.to_string(), "tools": tools,
        });
        let text = format!("running  {name} {version}: {}", tools.join(", "));
        let told = self.tell(&value, &text);
        let alone = Arc::new(alone);
        self.running = Some(Running { alone, placed });
        told.map_err(|_| "nobody reads what it says".to_owned())
    }

    async fn call(&mut self, tool: &str, arguments: &str) -> Result<ToolOutcome, Failure> {
        let arguments: Value = match serde_json::from_str(arguments) {
            Ok(arguments @ Value::Object(_)) => arguments,
            _ => {
                let why = "the arguments are no JSON object, such as {\"text\": \"a\"}";
                return self.not_called(tool, why);
            }
        };
        let Some(running) = &self.running else {
            return self.not_called(tool, "it does not run");
        };
        let alone = Arc::clone(&running.alone);
        let mut call = alone.connection().call(tool, &arguments);
        let called = loop {
            tokio::select! {
                called = &mut call => break called,
                () = tokio::time::sleep(LOOK) => self.show()?,
            }
        };
        let _ = self.bench.now();
        self.show()?;
        match called {
            Ok(output) => {
                let word = match output.outcome {
                    ToolOutcome::Done => "done",
                    ToolOutcome::Failed => "failed",
                };
                let value = json!({
                    "event": "called", "tool": tool, "outcome": word, "content": output.content,
                });
                self.tell(&value, &format!("{word:7}  {}", output.content))?;
                Ok(output.outcome)
            }
            Err(error) => self.not_called(tool, &error.to_string()),
        }
    }

    fn not_called(&self, tool: &str, why: &str) -> Result<ToolOutcome, Failure> {
        let value = json!({"event": "called", "tool": tool, "outcome": "refused", "content": why});
        self.tell(&value, &format!("refused  {why}"))?;
        Ok(ToolOutcome::Failed)
    }

    /// Says that it ended, if it did by itself.
    async fn notice_its_end(&mut self) -> Result<(), Failure> {
        let Some(running) = &self.running else {
            return Ok(());
        };
        let gone = running.alone.connection().gone();
        let Ok(Gone::Crashed { how }) = tokio::time::timeout(Duration::ZERO, gone).await else {
            return Ok(());
        };
        self.running = None;
        let value = json!({"event": "ended", "how": how});
        self.tell(
            &value,
            &format!("ended    {how}; nothing runs until it changes"),
        )
    }

    /// Shows decisions and log lines that are new.
    fn show(&mut self) -> Result<(), Failure> {
        let Some((name, home)) = self.of.clone() else {
            return Ok(());
        };
        let lines = log::read(&home.join("log")).unwrap_or_default();
        for record in self.bench.decisions(&mut self.since, &name) {
            let verdict = match record.verdict {
                Verdict::Allow => "allow",
                Verdict::Deny => "deny",
                Verdict::RequireReview => "review",
            };
            let rules: Vec<&str> = record.spoke.iter().map(|one| one.rule.as_str()).collect();
            let capability = capability(&record);
            let value = json!({
                "event": "decision", "verdict": verdict, "capability": capability, "rules": rules,
            });
            let by = match rules.as_slice() {
                [] => "no rule".to_owned(),
                rules => rules.join(", "),
            };
            self.tell(&value, &format!("{verdict:7}  {capability} ({by})"))?;
        }
        // A log that was too long has begun anew.
        let new = lines.get(self.lines..).unwrap_or(&lines);
        for line in new {
            let level = json!(line.level);
            let level = level.as_str().unwrap_or_default();
            let value = json!({"event": "log", "level": level, "text": line.text});
            self.tell(&value, &format!("log      {level} {}", line.text))?;
        }
        self.lines = lines.len();
        Ok(())
    }

    fn tell(&self, value: &Value, text: &str) -> Result<(), Failure> {
        match self.session.json() {
            true => self.session.printer.json(value)?,
            false => self.session.printer.data(text)?,
        }
        Ok(())
    }
}

/// What is typed, line by line; ends when the input does.
fn lines() -> mpsc::Receiver<String> {
    let (lines, typed) = mpsc::channel(1);
    // Reading cannot be interrupted; the process ends without it.
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    });
    typed
}

/// Everything below a folder, in order; links are not followed.
fn look_at(folder: &Path) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut left = vec![folder.to_owned()];
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(next).into_iter().flatten().flatten() {
            let Ok(facts) = entry.metadata() else {
                continue;
            };
            if facts.is_dir() {
                left.push(entry.path());
            }
            seen.push(Seen {
                path: entry.path(),
                changed: facts.modified().ok(),
                size: facts.len(),
            });
            if seen.len() >= MAX_FILES {
                return seen;
            }
        }
    }
    seen.sort_unstable();
    seen
}
