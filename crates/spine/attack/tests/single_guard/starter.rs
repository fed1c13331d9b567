//! Starts one command in one sandbox, as the product does, and passes it on.
//!
//! What it inherits, variables and descriptors, is what a person's shell would
//! have. Must never scrub anything itself: that is what is being tested.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use fluffy_attack::{Limits, Reason};
use fluffy_base::{ByteSize, Span};
use fluffy_contract::isolation::{Child, Command, Exit, LayerMount, Limit, Output, SandboxSpec};
use fluffy_layer::{HeldLayer, LayerDirectories, LayerKind, LayerStore};
use fluffy_ledger::{Actor, Ledger, LedgerOptions};
use fluffy_sandbox::client::{Journal, LauncherCommand, LauncherHandle};
use fluffy_sandbox::plan::{Engine, Settings};
use fluffy_sandbox::template::{Lifetime, Template};

use crate::aftermath;

const TEMPLATE: &str = "code-executor";

/// What each start keeps; empty whenever nothing runs.
pub(crate) const STARTERS: &str = "/home/starters";

/// How a command is to be started, and what becomes of its writes.
pub(crate) struct Start<'a> {
    pub(crate) time: &'a str,
    /// The guards to leave out, separated by commas.
    pub(crate) weaken: &'a str,
    pub(crate) aftermath: &'a str,
    pub(crate) project: &'a Path,
}

/// Runs the command, then merges or drops what it wrote.
pub(crate) fn start(start: &Start<'_>, command: &[&str]) -> ExitCode {
    let limits = Limits {
        time_ms: start.time.parse().unwrap(),
        ..Limits::TRIAL
    };
    let lacking: Vec<&str> = start.weaken.split(',').collect();
    let root = tempfile::Builder::new()
        .prefix("starter-")
        .tempdir_in(STARTERS)
        .unwrap()
        .keep();
    let store = LayerStore::open(&root.join("state")).unwrap();
    let permit = fluffy_test_kit::permit("sandbox.create", Some(TEMPLATE));
    let mut held = store
        .create(permit, start.project, LayerKind::Overlay)
        .unwrap();
    let settings = settings(limits, &root, start.project, store.folder());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let exit = runtime.block_on(run(settings, &lacking, &held, command));
    match (start.aftermath, lacking.contains(&"merge-refusal")) {
        ("merge", false) => aftermath::merge(&mut held),
        ("merge", true) => aftermath::merge_blindly(&held),
        _ => {}
    }
    match lacking.contains(&"clean-up") {
        false => aftermath::remove(&store, held),
        true => aftermath::remove_blindly(&held),
    }
    // Nothing else can be in its way than what it was to remove.
    let _removed = std::fs::remove_dir(store.folder()).and_then(|()| std::fs::remove_dir_all(root));
    match exit {
        Exit::Code { code } => ExitCode::from(u8::try_from(code).unwrap()),
        Exit::Signal { signal } => ExitCode::from(128 + u8::try_from(signal).unwrap()),
        Exit::Limit { limit } => {
            eprintln!("limit: {}", reason(limit));
            ExitCode::from(124)
        }
        Exit::NotStarted { errno } => panic!("the command was not started: {errno}"),
    }
}

async fn run(settings: Settings, lacking: &[&str], held: &HeldLayer, command: &[&str]) -> Exit {
    let ledger = settings.state.join("ledger.db");
    let ledger = Ledger::open(&ledger, LedgerOptions::default()).unwrap();
    let journal = Journal::new(Arc::new(ledger), Actor::system("test"));
    let launcher = launcher(lacking);
    let launcher = LauncherHandle::start(&launcher, settings, journal);
    let launcher = launcher.await.unwrap();
    let LayerDirectories::Overlay { upper, work } = held.prepare_mount().unwrap() else {
        panic!("another kind of layer");
    };
    let spec = SandboxSpec {
        template: TEMPLATE.to_owned(),
        project: Some(held.layer().project().to_owned()),
        layer: Some(LayerMount::Overlay { upper, work }),
        ..SandboxSpec::default()
    };
    let permit = fluffy_test_kit::permit("sandbox.create", Some(TEMPLATE));
    let sandbox = launcher.create(permit, spec).await.unwrap();
    // Whoever reads the output limits it, so this guard is the reader's.
    let limited = !lacking.contains(&"output-limit");
    let command = Command {
        output: limited.then_some(ByteSize(Limits::TRIAL.output)),
        ..Command::new(command.iter().copied())
    };
    let permit = fluffy_test_kit::permit("shell.exec", None);
    let mut child = sandbox.run(permit, command).await.unwrap();
    while let Some(output) = child.output().await.unwrap() {
        // Nobody may be reading any more; the attack goes on all the same.
        let _ = match output {
            Output::Stdout(bytes) => pass_on(std::io::stdout().lock(), &bytes),
            Output::Stderr(bytes) => pass_on(std::io::stderr().lock(), &bytes),
        };
    }
    let exit = child.wait().await.unwrap();
    sandbox.clean().await.unwrap();
    exit
}

fn pass_on(mut stream: impl Write, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes)?;
    stream.flush()
}

/// The template with the limits that attacks are told of.
fn settings(limits: Limits, root: &Path, project: &Path, layers: &Path) -> Settings {
    let mut built_in = Template::builtin(ByteSize(8 << 30)).into_iter();
    let mut template = built_in.find(|one| one.name == TEMPLATE).unwrap();
    template.memory = ByteSize(limits.memory);
    template.pids = limits.pids;
    template.time = Lifetime::Total(Span {
        millis: limits.time_ms,
    });
    template.disk = ByteSize(limits.disk);
    template.file_size = ByteSize(limits.file_size);
    template.scratch = ByteSize(limits.tmpfs);
    let program = std::env::current_exe().unwrap();
    Settings {
        templates: vec![template],
        projects: vec![project.to_owned()],
        plugins: None,
        layers: layers.to_owned(),
        state: root.join("state"),
        tools: vec![program.parent().unwrap().to_owned()],
        engine: Engine::Native,
    }
}

/// This program as a launcher that leaves guards out.
fn launcher(lacking: &[&str]) -> LauncherCommand {
    let mut launcher = LauncherCommand::own().unwrap();
    // Those of others: whoever reads, merges and removes.
    let others = ["", "output-limit", "merge-refusal", "clean-up"];
    let known = lacking.iter().filter(|name| !others.contains(name));
    for name in known {
        launcher
            .arguments
            .extend(["--weaken", name].map(str::to_owned));
    }
    if lacking.contains(&"environment-scrub") {
        // The client keeps its variables from every launcher: they are given
        // to this one behind its back.
        let variables = std::env::vars().map(|(name, value)| format!("{name}={value}"));
        let own = launcher.program.to_string_lossy().into_owned();
        launcher.arguments = variables.chain([own]).chain(launcher.arguments).collect();
        launcher.program = PathBuf::from("/usr/bin/env");
    }
    launcher
}

fn reason(limit: Limit) -> Reason {
    match limit {
        Limit::Time => Reason::Time,
        Limit::Memory => Reason::Memory,
        Limit::Pids => Reason::Pids,
        Limit::Output => Reason::Output,
        Limit::Disk => Reason::Disk,
    }
}
