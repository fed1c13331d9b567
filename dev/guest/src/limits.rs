//! Limits on the kernel of a guest: bombs, pauses, counts, and what is left.
//!
//! Every case comes with its control: the same command where the limit is out
//! of its reach. Says what happened, not whether it should have.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use fluffy_base::ByteSize;
use fluffy_contract::isolation::{Child, Command, Finished, Sandbox, SandboxSpec};
use fluffy_ledger::{Actor, Ledger, LedgerOptions};
use fluffy_sandbox::client::{Journal, LauncherCommand, LauncherHandle, SandboxHandle};
use fluffy_sandbox::plan::{Engine, Settings};
use fluffy_sandbox::template::Template;
use fluffy_test_kit::{permit, wait_for};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::groups;

/// Far beyond what anything takes in an emulator on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const MIB: u64 = 1 << 20;

/// Takes 32 MiB at once and some more on the way there, and says how much.
pub(crate) const MEMORY_BOMB: &str =
    "exec awk 'BEGIN { s = \"x\"; while (length(s) < 33554432) s = s s; print length(s) }'";
/// Starts 40 processes that stay.
pub(crate) const PROCESS_BOMB: &str =
    "i=0; while [ $i -lt 40 ]; do sleep 600 & i=$((i+1)); done; echo $i";
/// Uses a processor for ever.
pub(crate) const BUSY: &str = "echo up; while :; do :; done";

/// Tries everything and says what it found, each as a line.
pub(crate) async fn try_all(place: &str) -> Result<()> {
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let trial = Trial { place, folder };
    let tight = trial.launcher("tight", tight).await?;
    trial.say("limits", trial.shown(&tight).await?)?;
    trial.say("memory", trial.run(&tight, MEMORY_BOMB).await?)?;
    trial.say("processes", trial.run(&tight, PROCESS_BOMB).await?)?;
    trial.say("processor", trial.throttled(&tight).await?)?;
    trial.say("pause", trial.pause(&tight).await?)?;
    trial.say("orphan", trial.orphan(&tight).await?)?;
    trial.say("left", json!(groups::all()))?;
    drop(tight);
    let wide = trial.launcher("wide", wide).await?;
    trial.say("memory control", trial.run(&wide, MEMORY_BOMB).await?)?;
    trial.say("processes control", trial.run(&wide, PROCESS_BOMB).await?)?;
    trial.say("processor control", trial.throttled(&wide).await?)?;
    trial.say("killed launcher", trial.killed(wide).await?)
}

fn tight(template: &mut Template) {
    template.memory = ByteSize(24 * MIB);
    template.pids = 20;
    template.cpu_milli = Some(500);
}

fn wide(template: &mut Template) {
    template.memory = ByteSize(400 * MIB);
    template.pids = 200;
    template.cpu_milli = None;
}

/// One place in the tree of groups, with a folder for launchers' state.
struct Trial<'a> {
    place: &'a str,
    folder: tempfile::TempDir,
}

impl Trial<'_> {
    async fn launcher(&self, name: &str, change: fn(&mut Template)) -> Result<LauncherHandle> {
        let root = self.folder.path().join(name);
        for folder in ["project", "state/layers"] {
            std::fs::create_dir_all(root.join(folder)).context("cannot make a folder")?;
        }
        let mut templates = Template::builtin(ByteSize(1_024 * MIB));
        templates.iter_mut().for_each(change);
        let settings = Settings {
            templates,
            projects: vec![root.join("project")],
            plugins: None,
            layers: root.join("state/layers"),
            state: root.join("state"),
            tools: Vec::new(),
            engine: Engine::Native,
        };
        let ledger = Ledger::open(&root.join("ledger.db"), LedgerOptions::default())
            .context("cannot open a ledger")?;
        let journal = Journal::new(Arc::new(ledger), Actor::system("guest"));
        let command = LauncherCommand {
            program: std::env::current_exe().context("cannot find itself")?,
            arguments: vec!["worker".to_owned(), "launcher".to_owned()],
        };
        LauncherHandle::start(&command, settings, journal)
            .await
            .context("cannot start a launcher")
    }

    async fn sandbox(&self, launcher: &LauncherHandle) -> Result<SandboxHandle> {
        let spec = SandboxSpec {
            template: "code-executor".to_owned(),
            ..SandboxSpec::default()
        };
        let create = permit("sandbox.create", Some("code-executor"));
        let sandbox = launcher.create(create, spec).await;
        sandbox.context("cannot make a sandbox")
    }

    /// How a script ends in a sandbox of its own, and what is left of that.
    async fn run(&self, launcher: &LauncherHandle, script: &str) -> Result<Value> {
        let sandbox = self.sandbox(launcher).await?;
        let child = start(&sandbox, script).await?;
        let finished = child.finish().await.context("a command was lost")?;
        let Finished { exit, stdout, .. } = finished;
        let stats = sandbox.stats().await.context("nothing is counted")?;
        sandbox.clean().await.context("cannot clean up")?;
        Ok(json!({
            "exit": exit,
            "said": String::from_utf8_lossy(&stdout).trim(),
            "peak": stats.memory_peak,
            "groups": groups::all().len(),
        }))
    }

    /// What the kernel says of a sandbox's group and its limits.
    async fn shown(&self, launcher: &LauncherHandle) -> Result<Value> {
        let sandbox = self.sandbox(launcher).await?;
        let mut child = start(&sandbox, BUSY).await?;
        child.output().await.context("it does not start")?;
        let groups = groups::all();
        let files = groups.first().map(|group| {
            ["memory.max", "memory.swap.max", "pids.max", "cpu.max"]
                .map(|name| groups::file(group, name))
        });
        let counted = loop {
            let stats = sandbox.stats().await.context("nothing is counted")?;
            if stats.cpu_micros > 0 && stats.memory > 0 {
                break stats;
            }
        };
        sandbox.clean().await.context("cannot clean up")?;
        Ok(json!({
            "place": groups.first().and_then(|group| group.parent()),
            "files": files,
            "pids": counted.pids,
            "peak": counted.memory_peak.is_some(),
        }))
    }

    /// How often a busy command was held back by the time it was busy enough.
    async fn throttled(&self, launcher: &LauncherHandle) -> Result<Value> {
        let sandbox = self.sandbox(launcher).await?;
        let mut child = start(&sandbox, BUSY).await?;
        child.output().await.context("it does not start")?;
        let Some(group) = groups::all().into_iter().next() else {
            return Ok(Value::Null);
        };
        // Much more work than its share gives it at once.
        wait_for("it has worked", PATIENCE, || {
            (groups::field(&group, "cpu.stat", "usage_usec")? > 300_000).then_some(())
        })?;
        let often = groups::field(&group, "cpu.stat", "nr_throttled");
        sandbox.clean().await.context("cannot clean up")?;
        Ok(json!(often.map(|often| often > 0)))
    }

    async fn pause(&self, launcher: &LauncherHandle) -> Result<Value> {
        let sandbox = self.sandbox(launcher).await?;
        let mut child = start(&sandbox, "while :; do echo x; sleep 0.01; done").await?;
        child.output().await.context("it does not start")?;
        sandbox.pause().await.context("cannot pause")?;
        let group = groups::all().into_iter().next();
        let is = |frozen: u64| {
            let group = group.as_deref()?;
            let found = || groups::field(group, "cgroup.events", "frozen");
            let waited = wait_for("it is as asked", PATIENCE, || {
                (found() == Some(frozen)).then_some(())
            });
            Some(waited.is_ok())
        };
        let stands = is(1);
        let refused = start(&sandbox, "true").await.is_err();
        sandbox.resume().await.context("cannot resume")?;
        let goes = is(0);
        let output = child.output().await.context("it is lost")?.is_some();
        sandbox.clean().await.context("cannot clean up")?;
        Ok(json!({ "stands": stands, "refused": refused, "goes": goes, "output": output }))
    }

    /// A group of a launcher that is gone, with a process that still lives.
    async fn orphan(&self, launcher: &LauncherHandle) -> Result<Value> {
        let sandbox = self.sandbox(launcher).await?;
        let Some(beside) = groups::all().into_iter().next() else {
            return Ok(Value::Null);
        };
        let orphan = groups::make_orphan(&beside)?;
        let mut living = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .context("cannot start a process")?;
        std::fs::write(orphan.join("cgroup.procs"), living.id().to_string())
            .context("cannot move a process")?;
        let removed = launcher.sweep().await.len();
        let ended = living.wait().context("it is lost")?;
        let found = json!({
            "removed": removed,
            "ended": std::os::unix::process::ExitStatusExt::signal(&ended),
            "there": orphan.exists(),
            "neighbour": beside.exists(),
        });
        sandbox.clean().await.context("cannot clean up")?;
        Ok(found)
    }

    /// Kills a launcher with a command in its sandbox, and starts the next.
    async fn killed(&self, launcher: LauncherHandle) -> Result<Value> {
        let sandbox = self.sandbox(&launcher).await?;
        let mut child = start(&sandbox, "echo up; exec sleep 3456.5").await?;
        child.output().await.context("it does not start")?;
        let command = "sleep\u{0}3456.5\u{0}";
        wait_for("it runs", PATIENCE, || with_command(command))?;
        let own = std::env::current_exe().context("cannot find itself")?;
        let own = format!("{}\u{0}worker\u{0}launcher\u{0}", own.display());
        let pid = with_command(&own).context("there is no launcher")?;
        rustix::process::kill_process(pid, Signal::KILL).context("cannot kill it")?;
        launcher.gone().await;
        wait_for("its command is gone", PATIENCE, || {
            with_command(command).is_none().then_some(())
        })?;
        wait_for("it is collected", PATIENCE, || {
            (!Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists()).then_some(())
        })?;
        let before = groups::all().len();
        let next = self.launcher("wide", wide).await?;
        let after = groups::all().len();
        drop(next);
        Ok(json!({ "before": before, "after": after }))
    }

    fn say(&self, case: &str, found: Value) -> Result<()> {
        tell(self.place, case, found)
    }
}

/// Says one fact, as a line.
pub(crate) fn tell(place: &str, case: &str, found: Value) -> Result<()> {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let line = json!({
        "place": place,
        "case": case,
        "found": found,
        // For whoever wonders what takes so long.
        "at": uptime.split(' ').next(),
    });
    writeln!(std::io::stdout(), "{line}").context("nobody listens")
}

async fn start(
    sandbox: &SandboxHandle,
    script: &str,
) -> Result<fluffy_sandbox::client::ChildHandle> {
    let run = permit("shell.exec", None);
    let command = Command::new(["sh", "-c", script]);
    sandbox
        .run(run, command)
        .await
        .context("cannot run a command")
}

/// A process with exactly this command line.
fn with_command(command: &str) -> Option<Pid> {
    let processes = std::fs::read_dir("/proc").ok()?;
    processes
        .flatten()
        .map(|process| process.path())
        .filter(|process| is_running(process, command))
        .find_map(|process| Pid::from_raw(process.file_name()?.to_str()?.parse().ok()?))
}

fn is_running(process: &Path, command: &str) -> bool {
    std::fs::read_to_string(process.join("cmdline")).is_ok_and(|line| line == command)
}
