//! A launcher on a temporary project, and permits to use it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fluffy_base::ByteSize;
use fluffy_contract::isolation::{Command, Finished, LayerMount, SandboxSpec};
use fluffy_ledger::{Actor, Ledger, LedgerOptions};
use fluffy_policy::Permit;
use fluffy_sandbox::client::{
    Journal, LauncherCommand, LauncherHandle, SandboxHandle, StartLauncherError,
};
use fluffy_sandbox::plan::{Engine, Settings};
use fluffy_sandbox::template::Template;

pub(crate) struct Kit {
    pub(crate) launcher: LauncherHandle,
    pub(crate) engine: Engine,
    pub(crate) root: tempfile::TempDir,
}

impl Kit {
    pub(crate) async fn new() -> Self {
        Self::with(Engine::Native, |_| {}).await
    }

    pub(crate) async fn with(engine: Engine, change: impl FnOnce(&mut Settings)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let launcher = Self::start(&root, &command(), engine, change)
            .await
            .unwrap();
        Self {
            launcher,
            engine,
            root,
        }
    }

    /// Starts what the command says as a launcher on a project made here.
    pub(crate) async fn start(
        root: &tempfile::TempDir,
        command: &LauncherCommand,
        engine: Engine,
        change: impl FnOnce(&mut Settings),
    ) -> Result<LauncherHandle, StartLauncherError> {
        let layer = root.path().join("state/layers/one");
        for name in ["tree", "upper", "work"] {
            std::fs::create_dir_all(layer.join(name)).unwrap();
        }
        std::fs::create_dir(root.path().join("project")).unwrap();
        for file in [
            root.path().join("project/hello.txt"),
            layer.join("tree/hello.txt"),
        ] {
            std::fs::write(file, "hello\n").unwrap();
        }
        let mut settings = Settings {
            templates: Template::builtin(ByteSize(8 << 30)),
            projects: vec![root.path().join("project")],
            plugins: None,
            layers: root.path().join("state/layers"),
            state: root.path().join("state"),
            tools: Vec::new(),
            engine,
        };
        change(&mut settings);
        let ledger = Arc::new(
            Ledger::open(&root.path().join("ledger.db"), LedgerOptions::default()).unwrap(),
        );
        let journal = Journal::new(ledger, Actor::system("test"));
        LauncherHandle::start(command, settings, journal).await
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn spec(&self) -> SandboxSpec {
        SandboxSpec {
            template: "code-executor".to_owned(),
            project: Some(self.path("project")),
            layer: Some(match self.engine {
                Engine::Native => LayerMount::Overlay {
                    upper: self.path("state/layers/one/upper"),
                    work: self.path("state/layers/one/work"),
                },
                Engine::Bwrap | Engine::Reduced | Engine::Container => LayerMount::Tree {
                    tree: self.path("state/layers/one/tree"),
                },
            }),
            ..SandboxSpec::default()
        }
    }

    pub(crate) async fn sandbox(&self) -> SandboxHandle {
        self.launcher.create(create(), self.spec()).await.unwrap()
    }

    /// Runs a shell script in a sandbox of its own.
    pub(crate) async fn shell(&self, script: &str) -> Finished {
        let sandbox = self.sandbox().await;
        let finished = shell(&sandbox, script).await;
        sandbox.clean().await.unwrap();
        finished
    }
}

pub(crate) async fn shell(sandbox: &SandboxHandle, script: &str) -> Finished {
    sandbox
        .run(run(), Command::new(["sh", "-c", script]))
        .await
        .unwrap()
        .finish()
        .await
        .unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn command() -> LauncherCommand {
    LauncherCommand {
        program: Path::new(env!("CARGO_BIN_EXE_fluffy-sandbox-worker")).to_owned(),
        arguments: vec!["worker".to_owned(), "launcher".to_owned()],
    }
}

/// A permit to make a sandbox, from a real decision.
pub(crate) fn create() -> Permit {
    fluffy_test_kit::permit("sandbox.create", Some("code-executor"))
}

/// A permit to run a command, from a real decision.
pub(crate) fn run() -> Permit {
    fluffy_test_kit::permit("shell.exec", None)
}

/// How many processes of the host have this command line.
pub(crate) fn count(command: &str) -> usize {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|process| {
            std::fs::read_to_string(process.path().join("cmdline"))
                .is_ok_and(|line| line.trim_end_matches('\u{0}') == command)
        })
        .count()
}
