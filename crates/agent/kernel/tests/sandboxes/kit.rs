//! A project with a workshop, and layers over it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fluffy_base::ByteSize;
use fluffy_contract::isolation::{Command, Tier};
use fluffy_kernel::hidden::{Hidden, find_hidden};
use fluffy_kernel::workshop::{Booth, Mounts, Over, Premises, Stay, Workshop};
use fluffy_layer::{HeldLayer, LayerDirectories, LayerKind, LayerStore};
use fluffy_ledger::{Actor, Ledger, LedgerOptions};
use fluffy_policy::Permit;
use fluffy_sandbox::client::{Journal, LauncherCommand, LauncherHandle};
use fluffy_sandbox::plan::{Engine, Settings};
use fluffy_sandbox::template::Template;
use fluffy_test_kit::permit;

pub(crate) const TEMPLATE: &str = "code-executor";

pub(crate) struct Kit {
    pub(crate) launcher: LauncherHandle,
    pub(crate) workshop: Arc<Workshop>,
    pub(crate) layers: LayerStore,
    _root: tempfile::TempDir,
}

impl Kit {
    /// A project with these files.
    pub(crate) async fn new(files: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let project = root.path().join("project");
        std::fs::create_dir(&project).unwrap();
        for (path, text) in files {
            std::fs::write(project.join(path), text).unwrap();
        }
        let state = root.path().join("state");
        std::fs::create_dir(&state).unwrap();
        let layers = LayerStore::open(&state).unwrap();
        let settings = Settings {
            templates: Template::builtin(ByteSize(8 << 30)),
            projects: vec![project.clone()],
            plugins: None,
            layers: layers.folder().to_owned(),
            state,
            tools: Vec::new(),
            engine: Engine::Native,
        };
        let ledger = Ledger::open(&root.path().join("ledger.db"), LedgerOptions::default());
        let journal = Journal::new(Arc::new(ledger.unwrap()), Actor::system("test"));
        let command = LauncherCommand {
            program: PathBuf::from(env!("CARGO_BIN_EXE_fluffy-kernel-worker")),
            arguments: vec!["worker".to_owned(), "launcher".to_owned()],
        };
        let launcher = LauncherHandle::start(&command, settings, journal).await;
        let launcher = launcher.unwrap();
        let premises = Premises {
            project,
            template: TEMPLATE.to_owned(),
            tier: Tier::Process,
            mounts: Mounts::Yes,
            ahead: 0,
            stay: Stay::Call,
            environment: BTreeMap::new(),
        };
        Self {
            workshop: Arc::new(Workshop::new(launcher.clone(), premises)),
            launcher,
            layers,
            _root: root,
        }
    }

    pub(crate) fn project(&self) -> &Path {
        &self.workshop.premises().project
    }

    /// A new layer over the project.
    pub(crate) fn layer(&self) -> HeldLayer {
        let created = self
            .layers
            .create(create(), self.project(), LayerKind::Overlay);
        created.unwrap()
    }

    /// A sandbox over it.
    pub(crate) async fn booth(&self, held: &HeldLayer) -> Booth {
        let hidden = self.hidden(held);
        let over = Over {
            template: TEMPLATE,
            held,
            hidden: &hidden,
            protected: Vec::new(),
        };
        self.workshop.open(create(), over).await.unwrap()
    }

    fn hidden(&self, held: &HeldLayer) -> Hidden {
        find_hidden(held, self.workshop.premises(), &|_| true).unwrap()
    }
}

/// Where what was written over the project lies on the host.
pub(crate) fn written(held: &HeldLayer) -> PathBuf {
    match held.prepare_mount().unwrap() {
        LayerDirectories::Overlay { upper, .. } => upper,
        LayerDirectories::Copy { tree } => tree,
    }
}

pub(crate) fn shell(script: &str) -> Command {
    Command::new(["sh", "-c", script])
}

pub(crate) fn create() -> Permit {
    permit("sandbox.create", Some(TEMPLATE))
}

pub(crate) fn run() -> Permit {
    permit("shell.exec", None)
}
