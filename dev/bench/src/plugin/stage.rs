//! What every host of plugins needs to be measured: a launcher, a ledger, a
//! policy that allows everything.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use fluffy_base::{ByteSize, Clock, SystemClock};
use fluffy_gate::{Desk, Gate, PolicyPlaces};
use fluffy_ledger::{Actor, Ledger, LedgerOptions};
use fluffy_plugin_host::log::Log;
use fluffy_plugin_host::services::{Kept, Services, Store};
use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::{Context, Principal, PrincipalKind};
use fluffy_sandbox::client::{Journal, LauncherCommand, LauncherHandle};
use fluffy_sandbox::plan::{Engine, Settings};
use fluffy_sandbox::template::Template;
use fluffy_script::WorkerCommand;

const ALLOW_ALL: &str = "version: 1\ncapabilities:\n  - { name: all, match: {}, do: allow }\n";

pub(super) struct Stage {
    root: tempfile::TempDir,
    pub(super) program: PathBuf,
    pub(super) launcher: LauncherHandle,
    pub(super) ledger: Ledger,
    gate: Arc<Gate>,
}

impl Stage {
    pub(super) async fn new() -> Result<Self> {
        let root = tempfile::tempdir()?;
        let below = |name: &str| root.path().join(name);
        for name in ["project", "state/layers", "p/files", "p/meeting"] {
            std::fs::create_dir_all(below(name))?;
        }
        std::fs::write(below("user.yaml"), ALLOW_ALL)?;
        let ledger = Ledger::open(&below("ledger"), LedgerOptions::default())?;
        let program = std::env::current_exe()?;
        let settings = Settings {
            templates: Template::builtin(ByteSize(8 << 30)),
            projects: vec![below("project")],
            plugins: Some(below("p")),
            layers: below("state/layers"),
            state: below("state"),
            tools: vec![program.clone()],
            engine: Engine::Native,
        };
        let journal = Journal::new(Arc::new(ledger.clone()), Actor::system("bench"));
        let launcher = LauncherHandle::start(&LauncherCommand::own()?, settings, journal).await?;
        let places = PolicyPlaces {
            organisation: below("organisation.yaml"),
            user: below("user.yaml"),
            pins: None,
            worker: WorkerCommand {
                program: program.clone(),
                args: vec![crate::process::WORKER.into()],
            },
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let gate = Arc::new(Gate::open(places, ledger.clone(), clock)?);
        Ok(Self {
            root,
            program,
            launcher,
            ledger,
            gate,
        })
    }

    pub(super) fn below(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Somebody who was granted everything.
    pub(super) fn desk(&self, kind: PrincipalKind, name: &str) -> Result<Desk> {
        let everything = || vec!["*".to_owned()];
        let grant = Grant::build(&GrantLists {
            capabilities: everything(),
            deny_capabilities: Vec::new(),
            workspace: everything(),
            user: everything(),
        })?;
        Ok(Desk {
            gate: Arc::clone(&self.gate),
            principal: Principal::new(kind, name, Arc::new(grant)),
        })
    }

    pub(super) fn services(&self) -> Result<Arc<Services>> {
        let kept = Kept {
            store: Store::open(&self.below("kv.sqlite"))?,
            log: Log::open(&self.below("log"))?,
        };
        let desk = self.desk(PrincipalKind::Plugin, "bench")?;
        Ok(Arc::new(Services::new(desk, Context::default(), kept)))
    }
}
